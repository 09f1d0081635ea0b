//! Tables of synthetic modules, of all installed modules, and compared with other unwinders.

mod against_dwarf;
mod installed;
mod live;
mod module;
mod synthetic;
