//! The image: drawn by inferno, then given colours for light and dark, hatching, and a header with wrapped lines and a
//! legend, for which inferno has no options.

use std::io::{self, Write};

use heapbpf_base::shown;
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};
use quick_xml::escape::escape;
use quick_xml::events::{BytesStart, BytesText, Event};
use quick_xml::{Reader, Writer};
use rustc_hash::FxHashMap;

use super::colour::Colour;
use super::header::{self, Header, Key};
use super::nodes::Position;
use crate::presentation::View;

/// Pixels from one row of frames to the next.
const ROW_HEIGHT: usize = 16;

const GROUND: &str = "#fbfbfc";
const FOUND: &str = "#f39ad6";

/// How a frame is drawn.
pub(crate) struct Paint {
    pub(crate) colour: Colour,
    pub(crate) is_hatched: bool,
    /// Replaces inferno's amounts behind the name. Without parentheses, which the image's script removes.
    pub(crate) words: Option<String>,
}

pub(crate) struct Image<'a> {
    pub(crate) header: &'a Header,
    pub(crate) legend: &'a [Key],
    pub(crate) paints: &'a FxHashMap<Position, Paint>,
    pub(crate) view: View,
    pub(crate) icicle: bool,
}

impl Image<'_> {
    /// Draws lines, which are sorted by frame, of widths shifted right by `shift`.
    pub(crate) fn draw(&self, lines: &[String], shift: u32, out: impl Write) -> io::Result<()> {
        let mut options = Options::default();
        options.title.clone_from(&self.header.title);
        options.notes = header::comment(&self.header.notes);
        self.view.unit().clone_into(&mut options.count_name);
        options.bgcolors = Some(GROUND.parse().map_err(io::Error::other)?);
        options.search_color = FOUND.parse().map_err(io::Error::other)?;
        if self.icicle {
            options.direction = Direction::Inverted;
        }
        // The start of a long name is more useful than its end, which is parameters.
        options.text_truncate_direction = TextTruncateDirection::Right;
        // The same profile gives the same bytes.
        options.deterministic = true;
        // If inferno sorted the lines, it would draw a frame in two pieces where another frame's name starts with its
        // name. This option draws the lines from the last to the first.
        options.flame_chart = true;
        #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
        {
            options.factor = (1_u64 << shift) as f64;
        }
        let mut image = Vec::new();
        inferno::flamegraph::from_lines(&mut options, lines.iter().rev().map(String::as_str), &mut image)?;
        let image = String::from_utf8(image).map_err(io::Error::other)?;
        Restyling::new(self, &image)?.run(&image, Writer::new(out))
    }
}

/// A pass over inferno's image.
struct Restyling<'a> {
    image: &'a Image<'a>,
    /// Names of the colours' classes.
    classes: FxHashMap<Colour, String>,
    /// Vertical position of the root's rectangle.
    root_y: usize,
    /// Height of what is inserted above the frames.
    header_height: usize,
    header: String,
}

impl<'a> Restyling<'a> {
    fn new(image: &'a Image<'a>, drawn: &str) -> io::Result<Self> {
        let mut colours: Vec<Colour> = image.paints.values().map(|paint| paint.colour).collect();
        colours.extend(image.legend.iter().filter_map(|key| key.colour));
        colours.sort_unstable();
        colours.dedup();
        let classes = colours.into_iter().enumerate().map(|(number, colour)| (colour, format!("c{number}"))).collect();
        let mut rows = Vec::new();
        let mut reader = Reader::from_str(drawn);
        loop {
            match reader.read_event().map_err(io::Error::other)? {
                Event::Empty(tag) if number(&tag, "fg:x").is_some() => rows.extend(number(&tag, "y")),
                Event::Eof => break,
                _ => {}
            }
        }
        // The root is the bottom row, or the top one of an icicle graph.
        let root_y = if image.icicle { rows.iter().min() } else { rows.iter().max() };
        let root_y = usize::try_from(root_y.copied().unwrap_or_default()).map_err(io::Error::other)?;
        let mut restyling = Self { image, classes, root_y, header_height: 0, header: String::new() };
        let class = |colour| restyling.classes.get(&colour).map_or("", String::as_str);
        (restyling.header, restyling.header_height) = header::below_title(image.header, image.legend, class);
        Ok(restyling)
    }

    fn run(&self, drawn: &str, mut writer: Writer<impl Write>) -> io::Result<()> {
        let mut reader = Reader::from_str(drawn);
        loop {
            match reader.read_event().map_err(io::Error::other)? {
                Event::Eof => return writeln!(writer.get_mut()),
                Event::Start(tag) if tag.name().as_ref() == b"g" => self.frame(&mut reader, &mut writer)?,
                Event::Start(tag) => {
                    // The first element below the title.
                    if attribute(&tag, "id").as_deref() == Some("details") {
                        writer.get_mut().write_all(self.header.as_bytes())?;
                    }
                    writer.write_event(Event::Start(self.moved(&tag)))?;
                }
                Event::Empty(tag) if attribute(&tag, "fill").as_deref() == Some("url(#background)") => {
                    let ground = with(&with(&tag, "height", "100%"), "class", "ground");
                    writer.write_event(Event::Empty(ground))?;
                }
                Event::End(tag) => {
                    match tag.name().as_ref() {
                        b"defs" => writer.get_mut().write_all(header::HATCHING.as_bytes())?,
                        b"style" => writer.get_mut().write_all(self.style().as_bytes())?,
                        _ => {}
                    }
                    writer.write_event(Event::End(tag))?;
                }
                event => writer.write_event(event)?,
            }
        }
    }

    fn style(&self) -> String {
        let mut classes: Vec<_> = self.classes.iter().map(|(colour, class)| (class, colour.dark)).collect();
        classes.sort_unstable_by_key(|(class, _)| (class.len(), class.as_str()));
        let dark = classes.iter().map(|(class, dark)| format!(".{class} {{ fill:{dark}; }}\n"));
        header::STYLE.replace("DARK", &dark.collect::<String>())
    }

    /// Makes room for the header.
    fn moved<'t>(&self, tag: &BytesStart<'t>) -> BytesStart<'t> {
        let down = |name: &str| (number(tag, name).unwrap_or_default() + self.header_height as u64).to_string();
        match (tag.name().as_ref(), attribute(tag, "id").as_deref()) {
            (b"svg", None) => {
                let (width, height) = (attribute(tag, "width").unwrap_or_default(), down("height"));
                with(&with(tag, "height", &height), "viewBox", &format!("0 0 {width} {height}"))
            }
            (b"svg", Some("frames")) => with(tag, "y", &self.header_height.to_string()),
            (b"text", Some("details" | "matched")) => with(tag, "y", &down("y")),
            _ => tag.to_owned(),
        }
    }

    /// Paints a frame, whose start tag has been read.
    fn frame(&self, reader: &mut Reader<&[u8]>, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let mut title = String::new();
        let mut is_title = false;
        let mut text = Vec::new();
        let mut rectangle = None;
        loop {
            match reader.read_event().map_err(io::Error::other)? {
                Event::Start(tag) if tag.name().as_ref() == b"title" => is_title = true,
                Event::End(tag) if tag.name().as_ref() == b"title" => is_title = false,
                Event::End(tag) if tag.name().as_ref() == b"g" => break,
                Event::Eof => return Err(io::ErrorKind::UnexpectedEof.into()),
                Event::Text(part) if is_title => title.push_str(&part.decode().map_err(io::Error::other)?),
                Event::GeneralRef(name) if is_title => {
                    title.push_str(&format!("&{};", name.decode().map_err(io::Error::other)?));
                }
                Event::Empty(tag) => rectangle = Some(tag),
                event => text.push(event),
            }
        }
        let rectangle = rectangle.ok_or(io::ErrorKind::InvalidData)?;
        let paint = self.position(&rectangle).and_then(|position| self.image.paints.get(&position));
        if let Some(words) = paint.and_then(|paint| paint.words.as_deref())
            && let Some(end) = title.rfind(" (")
        {
            title.replace_range(end.., &format!(" ({})", escape(words)));
        }
        writer.write_event(Event::Start(BytesStart::new("g")))?;
        writer.create_element("title").write_text_content(BytesText::from_escaped(title))?;
        writer.write_event(Event::Empty(self.painted(&rectangle, paint)))?;
        if paint.is_some_and(|paint| paint.is_hatched) {
            let hatching = with(&with(&rectangle, "fill", "url(#hatching)"), "class", "hatching");
            writer.write_event(Event::Empty(hatching))?;
        }
        text.into_iter().try_for_each(|event| writer.write_event(event))?;
        writer.write_event(Event::End(BytesStart::new("g").to_end()))
    }

    fn position(&self, rectangle: &BytesStart<'_>) -> Option<Position> {
        let y = usize::try_from(number(rectangle, "y")?).ok()?;
        Some((number(rectangle, "fg:x")?, self.root_y.abs_diff(y) / ROW_HEIGHT))
    }

    fn painted<'t>(&self, rectangle: &BytesStart<'t>, paint: Option<&Paint>) -> BytesStart<'t> {
        let colour = paint.map_or(Colour::grey(), |paint| paint.colour);
        let painted = with(rectangle, "fill", &colour.light.to_string());
        self.classes.get(&colour).map_or(painted.to_owned(), |class| with(&painted, "class", class))
    }
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let attribute = tag.try_get_attribute(name).ok()??;
    String::from_utf8(attribute.value.into_owned()).ok()
}

/// Parses a whole number, as in `189` and `199.00`.
fn number(tag: &BytesStart<'_>, name: &str) -> Option<u64> {
    attribute(tag, name)?.trim_end_matches(".00").parse().ok()
}

/// A copy of the tag with this value of an attribute.
fn with<'t>(tag: &BytesStart<'_>, name: &str, value: &str) -> BytesStart<'t> {
    let mut copy = BytesStart::new(shown::text(tag.name().as_ref()).into_owned());
    let mut is_new = true;
    for attribute in tag.attributes().flatten() {
        if attribute.key.as_ref() == name.as_bytes() {
            copy.push_attribute((name, value));
            is_new = false;
        } else {
            copy.push_attribute(attribute);
        }
    }
    if is_new {
        copy.push_attribute((name, value));
    }
    copy
}
