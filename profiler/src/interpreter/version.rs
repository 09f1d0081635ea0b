//! Versions of interpreters.

use std::fmt;

/// `major.minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(super) major: u8,
    pub(super) minor: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// What is known of the minor versions of a major version, in their order without gaps. Shown as a range: `8.0 to 8.5`.
pub(super) struct Versions<T: 'static> {
    major: u8,
    minors: &'static [(u8, T)],
}

impl<T> Versions<T> {
    /// A constant of these does not compile if a minor version is missing between others.
    pub(super) const fn new(major: u8, minors: &'static [(u8, T)]) -> Self {
        let mut at = 1;
        while at < minors.len() {
            assert!(minors[at].0 == minors[at - 1].0 + 1, "a minor version is missing");
            at += 1;
        }
        Self { major, minors }
    }

    #[cfg(test)]
    pub(super) fn minors(&self) -> &'static [(u8, T)] {
        self.minors
    }

    pub(super) fn get(&self, version: Version) -> Option<&'static T> {
        let mut minors = self.minors.iter().filter(|_| version.major == self.major);
        minors.find(|(minor, _)| *minor == version.minor).map(|(_, known)| known)
    }
}

impl<T> fmt::Display for Versions<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] = [self.minors.first(), self.minors.last()].map(|known| known.map_or(0, |(minor, _)| *minor));
        write!(formatter, "{}.{first} to {}.{last}", self.major, self.major)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_by_both_numbers() {
        let versions = Versions::new(8, &[(3, 'a'), (4, 'b')]);
        let get = |major, minor| versions.get(Version { major, minor }).copied();
        assert_eq!([get(8, 3), get(8, 4), get(8, 2), get(8, 5), get(7, 3)], [Some('a'), Some('b'), None, None, None]);
        assert_eq!(versions.to_string(), "8.3 to 8.4");
    }
}
