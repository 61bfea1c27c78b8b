//! The methods. Commands call the same functions, and print the results.

mod background;
mod listing;
mod moving;
mod tuning;
mod vm;

pub use background::{
    Log, LogText, Logs, Messages, Remove, Removed, Run, Started, Subscribe, Subscribed, Wait, Waited, status_of,
};
pub use listing::{ListedVm, Ps, Runs, SilentRun, Stats, StatsReply};
pub use moving::{CheckMigration, Migrate, MigrateProgress, Migrated, Snapshot, SnapshotProgress, SnapshotTaken};
pub use tuning::{Get, Set, Tunable, Tunables, no_tunable};
pub use vm::{Destroy, Pause, Reboot, Reset, Resume, Shutdown, Target};
