//! All tests that need no model checker and no process of their own: one program, since each would compile the library's generic
//! code anew.

mod engine;
mod formats;
mod gstage;
mod gstage_beside;
mod gstage_dirty;
mod gstage_giga;
mod gstage_mega;
mod gstage_promote;
mod gstage_random;
mod ids;
mod keeper;
mod mappers;
mod originals;
mod random;
mod rig;
mod shadow_beside;
mod shadow_bounded;
mod shadow_coalesce;
mod shadow_composed;
mod shadow_digest;
mod shadow_ends;
mod shadow_filled;
mod shadow_matrix;
mod shadow_places;
mod shadow_quiet;
mod shadow_quiet_cases;
mod shadow_random;
mod shadow_rig;
mod two_stage_matrix;
mod zeroed;
