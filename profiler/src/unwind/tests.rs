//! Tables from made-up modules, from every module installed here, and against other unwinders.

mod against_dwarf;
mod installed;
mod live;
mod made_up;
mod module;
