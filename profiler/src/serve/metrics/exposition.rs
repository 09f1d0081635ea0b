//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

pub(in crate::serve) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Kind {
    Gauge,
    Counter,
}

/// Metrics in the text format.
#[derive(Default)]
pub(super) struct Exposition {
    text: String,
    name: &'static str,
}

impl Exposition {
    /// Starts a metric. Names of counters end with `_total`.
    pub(super) fn metric(&mut self, name: &'static str, kind: Kind, help: &str) -> &mut Self {
        debug_assert!(matches!(kind, Kind::Counter) == name.ends_with("_total"), "{name}");
        let kind: &str = kind.into();
        // Writing to a text does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.name = name;
        self
    }

    /// Adds a value of the metric.
    pub(super) fn value(&mut self, labels: &[(&str, &str)], value: f64) -> &mut Self {
        self.text.push_str(self.name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"", if at == 0 { '{' } else { ',' });
            for c in text.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    _ => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = Exposition::default();
        text.metric("a_bytes", Kind::Gauge, "What it is.")
            .value(&[], 0.5)
            .value(&[("x", "a\"\\\n{}"), ("y", "é")], 1e21);
        let expected = "# HELP a_bytes What it is.\n# TYPE a_bytes gauge\na_bytes 0.5\na_bytes{x=\"a\\\"\\\\\\n{}\",y=\"é\"} 1000000000000000000000\n";
        assert_eq!(text.finish(), expected);
    }
}
