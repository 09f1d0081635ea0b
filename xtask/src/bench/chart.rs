//! A picture of ratios: a panel for each program with a bar for each tool, on a logarithmic scale. Text stays text, and
//! colours follow the reader's preference for light or dark pages.

const WIDTH: f64 = 880.0;
const COLUMNS: usize = 2;
const MARGIN: f64 = 16.0;
const HEAD: f64 = 62.0;
const TITLE: f64 = 26.0;
const BAR: f64 = 17.0;
const PANEL_GAP: f64 = 18.0;
const LABELS: f64 = 168.0;
/// For the figure beside the longest bar.
const FIGURES: f64 = 44.0;
const FOOT: f64 = 30.0;

const STYLE: &str = "
    svg { font: 12px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; }
    .page { fill: #ffffff; } text { fill: #1f2328; } .faint { fill: #59636e; } .line { stroke: #d1d9e0; }
    .title { font-weight: 600; font-size: 13px; } .head { font-weight: 600; font-size: 16px; }
    .bar { fill: #8c959f; } .own { fill: #0969da; } .strong { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
        .page { fill: #0d1117; } text { fill: #f0f6fc; } .faint { fill: #9198a1; } .line { stroke: #3d444d; }
        .bar { fill: #656c76; } .own { fill: #4493f8; }
    }
";

pub(super) struct Panel {
    pub(super) title: String,
    pub(super) description: String,
    /// Ratios by tool; `None` where there is no figure.
    pub(super) bars: Vec<(&'static str, Option<f64>)>,
}

/// Bars of heapbpf have the colour of emphasis.
fn is_own(name: &str) -> bool {
    name.starts_with("heapbpf")
}

pub(super) fn svg(panels: &[Panel], provenance: &str) -> String {
    let ratios = panels.iter().flat_map(|panel| &panel.bars).filter_map(|(_, ratio)| *ratio);
    let max = ratios.fold(2.0, f64::max);
    let bars = panels.iter().map(|panel| panel.bars.len()).max().unwrap_or(0);
    let panel_height = TITLE + bars as f64 * BAR + PANEL_GAP;
    let panel_width = (WIDTH - MARGIN) / COLUMNS as f64;
    let height = HEAD + panels.len().div_ceil(COLUMNS) as f64 * panel_height + FOOT;
    let mut body = format!(
        "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n\
         <text class=\"head\" x=\"{MARGIN}\" y=\"27\">CPU time as a multiple of the unprofiled program</text>\n\
         <text class=\"faint\" x=\"{MARGIN}\" y=\"46\">Shorter is better; logarithmic scale, from 1 at the line. Sampling of \
         tcmalloc and jemalloc: to the same allocator without it.</text>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        let x = MARGIN + (index % COLUMNS) as f64 * panel_width;
        let y = HEAD + (index / COLUMNS) as f64 * panel_height;
        body.push_str(&panel.svg(x, y, panel_width - MARGIN, max));
    }
    let foot = height - 12.0;
    body.push_str(&format!("<text class=\"faint\" x=\"{MARGIN}\" y=\"{foot}\">{}</text>\n", escaped(provenance)));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"CPU time of programs under heap profilers\">\n<style>{STYLE}</style>\n{body}</svg>\n"
    )
}

impl Panel {
    fn svg(&self, x: f64, y: f64, width: f64, max: f64) -> String {
        let from = x + LABELS;
        let scale = (width - LABELS - FIGURES) / max.ln();
        let baseline = y + 12.0;
        let mut text = format!(
            "<text class=\"title\" x=\"{x}\" y=\"{baseline}\">{} <tspan class=\"faint\" font-weight=\"400\">{}</tspan></text>\n",
            escaped(&self.title),
            escaped(&self.description)
        );
        for (index, (name, ratio)) in self.bars.iter().enumerate() {
            let top = y + TITLE - 4.0 + index as f64 * BAR;
            let baseline = top + 12.0;
            let (class, weight) = if is_own(name) { ("bar own", " class=\"strong\"") } else { ("bar", "") };
            text.push_str(&format!("<text{weight} x=\"{x}\" y=\"{baseline}\">{}</text>\n", escaped(name)));
            let Some(ratio) = ratio else {
                text.push_str(&format!("<text class=\"faint\" x=\"{:.1}\" y=\"{baseline}\">–</text>\n", from + 5.0));
                continue;
            };
            let length = (ratio.ln() * scale).max(1.0);
            let digits = if *ratio < 9.95 { 2 } else { 0 };
            text.push_str(&format!(
                "<rect class=\"{class}\" x=\"{from}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"13\" rx=\"2\"/>\n\
                 <text{weight} x=\"{:.1}\" y=\"{baseline}\">{ratio:.digits$}</text>\n",
                from + length + 5.0
            ));
        }
        let (top, bottom) = (y + TITLE - 6.0, y + TITLE - 4.0 + self.bars.len() as f64 * BAR);
        text.push_str(&format!("<line class=\"line\" x1=\"{from}\" y1=\"{top}\" x2=\"{from}\" y2=\"{bottom}\"/>\n"));
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and widths of bars, in order.
    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.split("<rect class=\"bar").skip(1);
        bars.map(|bar| bar.split("width=\"").nth(1).and_then(|it| it.split('"').next()?.parse().ok()).expect("a width"))
            .collect()
    }

    #[test]
    fn lengths_are_logarithms() {
        let panel = |bars| Panel { title: "a<b".to_owned(), description: "d".to_owned(), bars };
        let svg = svg(&[panel(vec![("heapbpf", Some(10.0)), ("x", Some(100.0))]), panel(vec![("y", Some(0.9))])], "p");
        let widths = widths(&svg);
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{widths:?}");
        assert!((widths[2] - 1.0).abs() < f64::EPSILON, "shorter than the line: {widths:?}");
        assert!(svg.contains("a&lt;b") && svg.contains(">100</text>") && svg.contains(">0.90</text>"), "{svg}");
    }

    #[test]
    fn missing_figures_are_visible() {
        let panel = Panel { title: "t".to_owned(), description: String::new(), bars: vec![("x", None)] };
        let svg = svg(&[panel], "p");
        assert!(svg.contains(">–</text>") && widths(&svg).is_empty(), "{svg}");
    }
}
