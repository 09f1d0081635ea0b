//! Names of C++'s own types, of gcc and of the demangler.

/// gcc's names of types, longer ones first, and the demangler's.
const SPELLINGS: [(&str, &str); 9] = [
    ("long long unsigned int", "unsigned long long"),
    ("long unsigned int", "unsigned long"),
    ("short unsigned int", "unsigned short"),
    ("__int128 unsigned", "unsigned __int128"),
    ("long long int", "long long"),
    ("short int", "short"),
    ("long int", "long"),
    ("decltype(nullptr)", "std::nullptr_t"),
    ("_Float128", "__float128"),
];

/// A name with the arguments of a template, or that of a type.
pub(super) fn in_template(name: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut spelled = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let is_start = !spelled.bytes().last().is_some_and(is_word);
        let found = SPELLINGS.iter().find(|(from, _)| {
            is_start && rest.strip_prefix(from).is_some_and(|after| !after.bytes().next().is_some_and(is_word))
        });
        let (length, text) = found.map_or((first.len_utf8(), &rest[..first.len_utf8()]), |(from, to)| (from.len(), to));
        spelled += text;
        rest = &rest[length..];
    }
    spelled
}
