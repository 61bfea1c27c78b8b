//! Shadow pages: what they are, and how they are found.

mod arena;
mod calm;
mod heads;
mod index;
mod lists;
mod marks;
mod notes;
mod page;
mod passed;
mod walks;

pub use arena::Arena;
pub use calm::Calm;
pub use heads::{Chunk, Heads};
pub use index::{Index, List};
pub use lists::Lists;
pub use marks::Marks;
pub use notes::{note_frame, noted_frame};
pub use page::{
    At, Body, CAPS, FRAMES_EACH, Id, Key, MARK, MOST_PAGES, NO_DIGEST, NO_PTE, Number, PARTS, Page, Place, Ref, Role,
    Stay, below, indices, permissions,
};
pub use passed::{Compared, Mappings, Passed};
pub use walks::Walks;
