//! Colours of flame graphs, in light and dark: those of the HTML page's flame graph.

use std::fmt;

/// UTF-16 code units of a name that determine its hue.
const NAME_UNITS_MAX: usize = 400;

/// Number of shades of a module, which distinguish neighbouring frames.
const SHADES: u32 = 4;

/// Number of strengths of growth. Even the lowest differs from no change.
const STRENGTHS: f64 = 8.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rgb(pub [u8; 3]);

impl fmt::Display for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [red, green, blue] = self.0;
        write!(f, "rgb({red},{green},{blue})")
    }
}

impl Rgb {
    /// Hue in degrees, saturation and lightness in percent.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 255")]
    fn of_hsl(hue: f64, saturation: f64, lightness: f64) -> Self {
        let (saturation, lightness) = (saturation / 100.0, lightness / 100.0);
        let amplitude = saturation * lightness.min(1.0 - lightness);
        // The formula of CSS Color Module Level 4, section 7.1.
        let channel = |n: f64| {
            let k = (n + hue / 30.0) % 12.0;
            let value = lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
            (value * 255.0).round() as u8
        };
        Self([channel(0.0), channel(8.0), channel(4.0)])
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Colour {
    pub light: Rgb,
    pub dark: Rgb,
}

impl Colour {
    /// Frames without a module, and labels that are not code.
    pub const fn grey() -> Self {
        Self { light: Rgb([215, 216, 219]), dark: Rgb([65, 67, 73]) }
    }

    pub(crate) const fn unchanged() -> Self {
        Self { light: Rgb([236, 237, 240]), dark: Rgb([44, 47, 53]) }
    }

    pub(crate) const fn noise() -> Self {
        Self { light: Rgb([203, 205, 210]), dark: Rgb([79, 82, 89]) }
    }

    /// A module's colour, by its name. `variant` selects the shade.
    pub fn of_module(name: &str, variant: &str) -> Self {
        Self::of_hue(f64::from(hash(name).rem_euclid(360)), hash(variant).unsigned_abs() % SHADES)
    }

    /// A module's colour in the legend.
    pub(crate) fn of_key(name: &str) -> Self {
        Self::of_hue(f64::from(hash(name).rem_euclid(360)), SHADES / 2)
    }

    fn of_hue(hue: f64, shade: u32) -> Self {
        let shade = f64::from(shade) / f64::from(SHADES - 1);
        Self { light: Rgb::of_hsl(hue, 62.0, 73.0 + 10.0 * shade), dark: Rgb::of_hsl(hue, 37.2, 26.0 + 8.0 * shade) }
    }

    /// Red for growth, blue for shrinkage. `part` is the share of the larger amount, from -1 to 1.
    pub(crate) fn of_growth(part: f64) -> Self {
        let strength = (part.abs().min(1.0) * STRENGTHS).ceil() / STRENGTHS;
        let hue = if part > 0.0 { 4.0 } else { 214.0 };
        Self {
            light: Rgb::of_hsl(hue, 40.0 + 50.0 * strength, 88.0 - 22.0 * strength),
            dark: Rgb::of_hsl(hue, 20.0 + 50.0 * strength, 28.0 + 10.0 * strength),
        }
    }
}

/// The page's hash of names (`hueOf`).
fn hash(name: &str) -> i32 {
    let units = name.encode_utf16().take(NAME_UNITS_MAX);
    let hash = units.fold(7_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    hash ^ (hash.cast_unsigned() >> 13).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by a browser: `hsl()` as a computed style, and the page's function.
    #[test]
    fn colours_are_those_of_the_page() {
        for (hue, saturation, lightness, expected) in [
            (0.0, 100.0, 50.0, [255, 0, 0]),
            (120.0, 100.0, 25.0, [0, 128, 0]),
            (205.0, 62.0, 78.0, [164, 205, 234]),
            (330.0, 0.0, 40.0, [102, 102, 102]),
        ] {
            assert_eq!(Rgb::of_hsl(hue, saturation, lightness), Rgb(expected), "{hue} {saturation} {lightness}");
        }
        assert_eq!(
            ["libc.so.6", "redis-server", "größe", ""].map(|name| hash(name).rem_euclid(360)),
            [242, 138, 189, 7]
        );
    }

    /// WCAG 2.2, section 1.4.3: names have a contrast of 4.5 or more.
    #[test]
    fn names_are_readable_on_all_modules() {
        let linear = |channel: u8| {
            let part = f64::from(channel) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let luminance =
            |Rgb([red, green, blue]): Rgb| 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
        let contrast = |one: Rgb, other: Rgb| {
            let (one, other) = (luminance(one), luminance(other));
            (one.max(other) + 0.05) / (one.min(other) + 0.05)
        };
        for hue in 0..360 {
            for shade in 0..SHADES {
                let Colour { light, dark } = Colour::of_hue(f64::from(hue), shade);
                assert!(contrast(light, Rgb([23, 24, 28])) >= 4.5, "{hue} {shade}: {light}");
                assert!(contrast(dark, Rgb([255, 255, 255])) >= 4.5, "{hue} {shade}: {dark}");
            }
        }
    }

    #[test]
    fn growth_is_red_and_shrinkage_blue() {
        let Colour { light: Rgb([red, _, blue]), .. } = Colour::of_growth(1.0);
        assert!(red > 200 && blue < 120);
        let Colour { light: Rgb([red, _, blue]), .. } = Colour::of_growth(-0.5);
        assert!(blue > red);
        assert_ne!(Colour::of_growth(0.001), Colour::unchanged());
        assert_ne!(Colour::of_growth(1.0), Colour::of_growth(0.5));
    }
}
