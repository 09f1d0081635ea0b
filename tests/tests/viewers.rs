//! Each format opened by its own readers: one recording, converted to all of them. A format's tests are a module here; what
//! was recorded is `fixture`'s.

#[path = "viewers/fixture.rs"]
mod fixture;

// One per format, in the order of the alphabet.
#[path = "viewers/flamegraph.rs"]
mod flamegraph;
#[path = "viewers/folded.rs"]
mod folded;
#[path = "viewers/names.rs"]
mod names;
