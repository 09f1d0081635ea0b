//! The texts above a flame graph: title, wrapped lines, legend; and the style of all images.

use std::io::{self, Write};

use quick_xml::escape::escape;

use super::colour::Colour;
use crate::text;

/// What fits 1200 pixels beside the buttons.
const TITLE_CHARS_MAX: usize = 100;
/// What fits a window of 900 pixels.
const LINE_CHARS_MAX: usize = 120;
const LINES_MAX: usize = 5;
const REASON_CHARS_MAX: usize = 140;
const KEY_CHARS_MAX: usize = 40;

/// Baseline of the title, and pixels from one line to the next.
const TITLE_Y: usize = 24;
const LINE_HEIGHT: usize = 17;
/// Width of a character in pixels: 0.6 of the font's size in common monospace fonts.
const CHAR_WIDTH: usize = 7;
const SWATCH_WIDTH: usize = 18;
const KEY_GAP: usize = 18;
const LEGEND_WIDTH_MAX: usize = LINE_CHARS_MAX * CHAR_WIDTH;

/// Rules behind inferno's own. `DARK` stands for the rules of dark colours. inferno's script fills search results.
pub(super) const STYLE: &str = "
svg { background:rgb(251,251,252); }
text { fill:rgb(23,24,28); }
.quiet { fill:rgb(92,98,112); text-anchor:middle; }
.key { stroke:rgb(92,98,112); stroke-width:0.5; }
.hatching { pointer-events:none; }
#search, #unzoom { opacity:1; text-decoration:underline; }
#matched { font-weight:bold; }
#search.show ~ #frames rect:not([fill=\"rgb(243,154,214)\"]):not(.hatching) { opacity:0.45; }
#frames text { stroke:none; pointer-events:none; }
@media (prefers-color-scheme: dark) {
svg { background:rgb(21,23,27); }
.ground { fill:rgb(21,23,27); }
text { fill:rgb(232,233,237); }
.quiet { fill:rgb(162,168,181); }
.stripe { stroke:white; stroke-opacity:0.16; }
#frames > *:hover { stroke:white; }
#frames text { fill:white; }
DARK#frames rect[fill=\"rgb(243,154,214)\"] { fill:rgb(162,56,127); }
}
";

/// A pattern to lay over frames.
pub(super) const HATCHING: &str = "<pattern id=\"hatching\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
     patternTransform=\"rotate(45)\"><path class=\"stripe\" d=\"M1 0V6\" stroke=\"black\" stroke-width=\"2\" \
     stroke-opacity=\"0.13\"/></pattern>";

pub(crate) struct Header {
    pub(crate) title: String,
    /// Statements, which are joined and wrapped.
    pub(crate) statements: Vec<String>,
    pub(crate) notes: String,
}

impl Header {
    pub(crate) fn new(title: &str, statements: Vec<String>, notes: String) -> Self {
        Self { title: text::cut(title, TITLE_CHARS_MAX).into_owned(), statements, notes }
    }

    /// Breaks lines between statements where possible, else between words.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for statement in self.statements.iter().filter(|statement| !statement.is_empty()) {
            match lines.last_mut() {
                Some(line) if chars(line) + 3 + chars(statement) <= LINE_CHARS_MAX => {
                    line.push_str(" · ");
                    line.push_str(statement);
                }
                _ => lines.extend(wrap(statement)),
            }
        }
        if lines.len() > LINES_MAX {
            lines.truncate(LINES_MAX);
            lines[LINES_MAX - 1].push_str(" …");
        }
        lines
    }
}

fn chars(text: &str) -> usize {
    text.chars().count()
}

fn wrap(statement: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in statement.split(' ') {
        let word = text::cut(word, LINE_CHARS_MAX);
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(&word);
        } else if chars(&lines[last]) + 1 + chars(&word) <= LINE_CHARS_MAX {
            lines[last].push(' ');
            lines[last].push_str(&word);
        } else {
            lines.push(word.into_owned());
        }
    }
    lines
}

/// An entry of the legend.
pub(crate) struct Key {
    /// `None` for a remark.
    pub(crate) colour: Option<Colour>,
    pub(crate) is_hatched: bool,
    pub text: String,
}

impl Key {
    pub(crate) fn new(colour: Colour, text: &str) -> Self {
        Self { colour: Some(colour), is_hatched: false, text: text::cut(text, KEY_CHARS_MAX).into_owned() }
    }

    fn width(&self) -> usize {
        let swatch = self.colour.map_or(0, |_| SWATCH_WIDTH);
        swatch + chars(&self.text) * CHAR_WIDTH
    }
}

/// Elements below the title, and their height.
pub(super) fn below_title<'a>(header: &Header, legend: &[Key], class: impl Fn(Colour) -> &'a str) -> (String, usize) {
    let mut elements = String::new();
    let mut y = TITLE_Y;
    for line in header.lines() {
        y += LINE_HEIGHT;
        elements += &format!("<text class=\"quiet\" x=\"50%\" y=\"{y}\">{}</text>", escape(&line));
    }
    for row in rows(legend) {
        y += LINE_HEIGHT;
        let width = row.iter().map(|key| key.width()).sum::<usize>() + (row.len() - 1) * KEY_GAP;
        let left = width / 2;
        // Nested, because the centre is known only as a percentage.
        elements += &format!("<svg x=\"50%\" y=\"{y}\" overflow=\"visible\"><g transform=\"translate(-{left})\">");
        let mut x = 0;
        for key in row {
            elements += &entry(key, x, &class);
            x += key.width() + KEY_GAP;
        }
        elements += "</g></svg>";
    }
    (elements, y - TITLE_Y)
}

/// Breaks the legend into rows.
fn rows(legend: &[Key]) -> Vec<Vec<&Key>> {
    let mut rows: Vec<Vec<&Key>> = Vec::new();
    let mut width = 0;
    for key in legend {
        match rows.last_mut() {
            Some(row) if width + KEY_GAP + key.width() <= LEGEND_WIDTH_MAX => {
                width += KEY_GAP + key.width();
                row.push(key);
            }
            _ => {
                width = key.width();
                rows.push(vec![key]);
            }
        }
    }
    rows
}

fn entry<'a>(key: &Key, x: usize, class: impl Fn(Colour) -> &'a str) -> String {
    let swatch = key.colour.map_or_else(String::new, |colour| {
        let swatch = |class: &str, fill: &str| {
            format!("<rect class=\"{class}\" x=\"{x}\" y=\"-9\" width=\"12\" height=\"10\" fill=\"{fill}\"/>")
        };
        let hatching = if key.is_hatched { swatch("hatching", "url(#hatching)") } else { String::new() };
        swatch(&format!("key {}", class(colour)), &colour.light.to_string()) + &hatching
    });
    let x = x + key.colour.map_or(0, |_| SWATCH_WIDTH);
    format!("{swatch}<text x=\"{x}\" y=\"0\">{}</text>", escape(&key.text))
}

/// Two hyphens, or one at the end, would end the comment early.
pub(super) fn comment(notes: &str) -> String {
    notes.replace('-', "\u{2010}")
}

/// Writes an image without frames: the header, and sentences below.
pub(crate) fn draw_words(header: &Header, words: &[String], out: &mut dyn Write) -> io::Result<()> {
    let (elements, height) = below_title(header, &[], |_| "");
    let top = TITLE_Y + height + 2 * LINE_HEIGHT;
    let words = words.iter().map(|line| escape(text::cut(line, REASON_CHARS_MAX).into_owned()).into_owned());
    let texts: Vec<String> = words
        .enumerate()
        .map(|(row, line)| {
            let y = top + row * 28;
            format!("<text x=\"50%\" y=\"{y}\" text-anchor=\"middle\" font-size=\"14\">{line}</text>")
        })
        .collect();
    let height = top + texts.len() * 28;
    let style = STYLE.replace("DARK", "");
    writeln!(
        out,
        "<svg version=\"1.1\" width=\"1200\" height=\"{height}\" viewBox=\"0 0 1200 {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\" font-family=\"monospace\" font-size=\"12\"><!-- {} -->\
         <style type=\"text/css\">{style}</style>\
         <rect class=\"ground\" width=\"100%\" height=\"100%\" fill=\"rgb(251,251,252)\"/>\
         <text x=\"50%\" y=\"{TITLE_Y}\" text-anchor=\"middle\" font-size=\"17\">{}</text>{elements}{}</svg>",
        escape(comment(&header.notes)),
        escape(&header.title),
        texts.concat(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_statements_then_between_words() {
        let lines = |statements: &[String]| Header::new("t", statements.to_vec(), String::new()).lines();
        let [short, half, long] = [10, 59, 150].map(|length| "x".repeat(length));
        assert_eq!(lines(&[short.clone(), String::new(), short.clone()]), [format!("{short} · {short}")]);
        assert_eq!(lines(&[half.clone(), half.clone()]), [half.clone(), half.clone()]);
        let words = format!("{half} {half} {half}");
        assert_eq!(lines(&[short.clone(), words]), [short.clone(), format!("{half} {half}"), half]);
        let [cut] = lines(&[long]).try_into().expect("one line");
        assert_eq!(chars(&cut), LINE_CHARS_MAX);
        let many = lines(&vec!["x".repeat(100); 9]);
        assert!(many.len() == LINES_MAX && many[LINES_MAX - 1].ends_with(" …"));
    }

    #[test]
    fn a_legend_breaks_into_rows() {
        let legend: Vec<Key> = (0..9).map(|_| Key::new(Colour::grey(), &"x".repeat(30))).collect();
        let rows = rows(&legend);
        assert_eq!(rows.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3]);
        let (elements, height) = below_title(&Header::new("", Vec::new(), String::new()), &legend, |_| "c0");
        assert_eq!((elements.matches("class=\"key c0\"").count(), height), (9, 3 * LINE_HEIGHT));
    }
}
