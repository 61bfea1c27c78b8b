//! The methods. Commands call the same functions, and print the results.

mod background;
mod kept;
mod listing;
mod moving;
mod tuning;
mod vm;

pub use background::{Log, LogText, Logs, Messages, Run, Started, Subscribe, Subscribed, Wait, Waited, status_of};
pub use kept::{Create, Created, KeptRun, KeptRuns, KeptState, List, Remove, Removed, Start};
pub use listing::{ListedVm, Ps, Runs, SilentRun, Stats, StatsReply};
pub use moving::{CheckMigration, Migrate, MigrateProgress, Migrated, Snapshot, SnapshotProgress, SnapshotTaken};
pub use tuning::{Get, Set, Tunable, Tunables, no_tunable};
pub use vm::{Destroy, Pause, Reboot, Reset, Resume, Shutdown, Target};
