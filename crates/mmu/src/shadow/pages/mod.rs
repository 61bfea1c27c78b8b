//! Shadow pages: what they are, and how they are found.

mod arena;
mod calm;
mod heads;
mod index;
mod lists;
mod marks;
mod page;
mod passed;
mod walks;

pub use arena::Arena;
pub use calm::Calm;
pub use heads::{Chunk, Heads};
pub use index::{Index, List};
pub use lists::Lists;
pub use marks::{Marks, PARTS};
pub use page::{
    At, Body, CAPS, FRAMES_EACH, Id, Key, MARK, MOST_PAGES, NO_DIGEST, NO_PTE, Number, Page, Place, Ref, Role, Stay,
    below, indices, note_frame, noted_frame, permissions,
};
pub use passed::{Compared, Mappings, Passed};
pub use walks::Walks;
