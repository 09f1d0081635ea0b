//! Readers in snapshots of tests.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::IMPLEMENTATIONS;
use super::implementation::Reader;

impl Serialize for dyn Reader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (language, state) = self.save();
        serializer.collect_map([(language.name(), state)])
    }
}

impl<'de> Deserialize<'de> for Box<dyn Reader> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let saved = serde_json::Map::deserialize(deserializer)?;
        let of = |name: &str| IMPLEMENTATIONS.iter().find(|it| it.language.name() == name)?.load;
        let loaded = saved.into_iter().find_map(|(name, state)| Some(of(&name)?(state)));
        loaded.ok_or_else(|| D::Error::custom("no language has such a reader"))
    }
}
