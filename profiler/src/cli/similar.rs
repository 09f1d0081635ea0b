//! Suggestions for mistyped commands.

/// The command whose name is most similar to a mistyped word: at most a letter in three differs.
pub(super) fn similar(word: &str) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "record",
        "convert",
        "symbolize",
        "agent",
        "doctor",
        "diff",
        "leaks",
        "top",
        "open",
        "types",
        "completions",
        "man",
    ];
    let distances = NAMES.map(|name| (strsim::osa_distance(word, name), name));
    let close = distances.into_iter().filter(|(distance, name)| *distance > 0 && distance * 3 <= name.len());
    close.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::super::commands::commands;
    use super::*;

    #[test]
    fn mistyped_commands_have_a_suggestion() {
        let all = commands();
        for name in all.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name) {
            assert_eq!(similar(&format!("{name}x")), Some(name));
            assert_eq!(similar(name), None);
        }
        assert_eq!(similar("recrod"), Some("record"));
        assert_eq!(similar("leak"), Some("leaks"));
        assert_eq!(similar("redis-server"), None);
        assert_eq!(similar("ls"), None);
    }
}
