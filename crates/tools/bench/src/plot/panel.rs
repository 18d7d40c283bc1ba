//! The common parts of all charts: heading, text, colours, and axes of time.

use crate::report::section::Section;
use crate::report::statistics::Summary;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A section's part of the picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The result of drawing.
pub type Drawn = Result<(), Box<dyn std::error::Error>>;

pub const WIDTH_PX: u32 = 1100;
/// The height of the heading, below which a chart may begin.
pub const HEAD_PX: u32 = 56;
pub const OURS: RGBColor = RGBColor(0x0b, 0x6e, 0x4f);
pub const PEER: RGBColor = RGBColor(0x5c, 0x63, 0x70);
pub const MISSED: RGBColor = RGBColor(0xb3, 0x26, 0x1e);
pub const GRID: RGBColor = RGBColor(0xe3, 0xe5, 0xe8);
pub const TEXT_PX: u32 = 12;

/// A line of text at a place: its left end, middle or right end.
pub fn text(area: &Area, (x, y): (i32, i32), from: HPos, colour: RGBColor, what: &str) -> Drawn {
    let style = style(TEXT_PX, &colour).pos(Pos::new(from, VPos::Center));
    Ok(area.draw(&Text::new(what.to_owned(), (x, y), style))?)
}

/// The font of all texts.
pub fn style(size_px: u32, colour: &RGBColor) -> TextStyle<'static> {
    ("sans-serif", size_px).into_font().color(colour)
}

/// Draws the heading: the section's title, and the place.
pub fn heading(area: &Area, section: &Section) -> Drawn {
    let title = style(15, &BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    let on = format!(" on {}", section.place);
    let of = section.title.strip_suffix(&on).unwrap_or(&section.title);
    area.draw(&Text::new(format!("{of}{on}"), (12, 18), title))?;
    text(area, (12, 38), HPos::Left, PEER, &section.place_details)
}

/// The range of whole decades around all these times, in the unit of the section.
pub fn decades(section: &Section, of: impl Fn(&Summary) -> [f64; 2]) -> std::ops::Range<f64> {
    let all = section.rows.iter().flat_map(|row| &row.contenders).map(of);
    let (mut low, mut high) = (f64::INFINITY, 0.0);
    for [from_us, to_us] in all {
        if from_us > 0.0 {
            low = section.unit.scale_us(from_us).min(low);
        }
        high = section.unit.scale_us(to_us).max(high);
    }
    let low = if low.is_finite() { low.log10().floor() as i32 } else { 0 };
    let high = if high > 0.0 { high.log10().ceil() as i32 } else { 1 };
    10f64.powi(low)..10f64.powi(high.max(low + 1))
}

/// A time on an axis, as short as it is exact.
pub fn tick(time: &f64) -> String {
    for (least, unit) in [(1e9, "G"), (1e6, "M")] {
        if *time >= least {
            return format!("{} {unit}", time / least);
        }
    }
    if *time >= 1.0 {
        return format!("{time:.0}");
    }
    let decimals = (-time.log10()).ceil() as usize;
    format!("{time:.decimals$}")
}

/// The names of all contenders, in the order of their first row.
pub fn names(section: &Section) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for contender in section.rows.iter().flat_map(|row| &row.contenders) {
        if !names.contains(&contender.name.as_str()) {
            names.push(&contender.name);
        }
    }
    names
}
