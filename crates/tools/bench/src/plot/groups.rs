//! A chart with a group of bars for each row, and a bar in it for each contender, on a logarithmic axis of time.

use super::panel::{Area, Drawn, GRID, HEAD_PX, OURS, PEER, TEXT_PX, decades, names, style, text, tick};
use crate::report::section::Section;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const CHART_WIDTH_PX: u32 = 800;
/// Without the texts below it.
const CHART_HEIGHT_PX: u32 = 340;
const LEGEND_LEFT_PX: i32 = CHART_WIDTH_PX as i32 + 12;
const LEGEND_LINE_PX: u32 = 18;
/// Room for the numbers of the bars.
const NUMBERS_PX: u32 = 18;
/// Room for the names of the groups, if they lie beside each other.
const NAMES_PX: u32 = 22;
/// The average width of a letter, rounded up.
const LETTER_PX: u32 = 7;
const BAR: RGBColor = RGBColor(0x8f, 0xa3, 0xbf);
/// The part of a group's width that stays free at each end, and the same for a bar.
const GROUP_GAP: f64 = 0.05;
const BAR_GAP: f64 = 0.1;

/// Whether the names of the groups stand upright, because they are too long to lie beside each other; and the room for
/// them.
fn names_below(section: &Section) -> (bool, u32) {
    let longest_px = section.rows.iter().map(|row| row.cell.chars().count() as u32 * LETTER_PX).max().unwrap_or(0);
    let group_px = (CHART_WIDTH_PX - 88) / section.rows.len().max(1) as u32;
    if longest_px > group_px { (true, longest_px + 4) } else { (false, NAMES_PX) }
}

fn chart_height_px(section: &Section) -> u32 {
    CHART_HEIGHT_PX + NUMBERS_PX + names_below(section).1
}

/// The height of the whole panel.
pub fn height_px(section: &Section) -> u32 {
    HEAD_PX + chart_height_px(section).max(LEGEND_LINE_PX * names(section).len() as u32) + 32
}

/// Draws the section. Bars are numbered as in the legend.
pub fn draw(area: &Area, section: &Section) -> Drawn {
    let names = names(section);
    let (_, below) = area.split_vertically(HEAD_PX);
    let (plot, _) = below.split_horizontally(CHART_WIDTH_PX);
    let (plot, _) = plot.split_vertically(chart_height_px(section));
    let (is_upright, names_px) = names_below(section);
    let times = decades(section, |c| [c.p25_us, c.p75_us]);
    let floor = times.start;
    let mut chart = ChartBuilder::on(&plot)
        .margin(12)
        .set_label_area_size(LabelAreaPosition::Left, 64)
        .set_label_area_size(LabelAreaPosition::Bottom, NUMBERS_PX + names_px)
        .build_cartesian_2d(0.0..section.rows.len().max(1) as f64, times.log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_labels(8)
        .y_label_formatter(&tick)
        .y_desc(format!("median, {} (line: 25th to 75th percentile)", section.unit.name()))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(PEER)
        .label_style(style(TEXT_PX, &PEER))
        .draw()?;
    let step = (1.0 - 2.0 * GROUP_GAP) / names.len().max(1) as f64;
    // Numbers shrink until they fit beside each other.
    let bar_px = f64::from(CHART_WIDTH_PX - 88) / section.rows.len().max(1) as f64 * step;
    let number_px = (bar_px / 1.3).clamp(6.0, f64::from(TEXT_PX)) as u32;
    let (base_x, base_y) = area.get_base_pixel();
    for (n, row) in section.rows.iter().enumerate() {
        for contender in &row.contenders {
            let Some(number) = names.iter().position(|name| *name == contender.name) else { continue };
            let left = n as f64 + GROUP_GAP + step * (number as f64 + BAR_GAP);
            let (right, middle) = (left + step * (1.0 - 2.0 * BAR_GAP), left + step * (0.5 - BAR_GAP));
            let time = |us: f64| section.unit.scale_us(us).max(floor);
            let colour = if is_ours(&contender.name) { OURS } else { BAR };
            let bar = Rectangle::new([(left, time(contender.median_us)), (right, floor)], colour.filled());
            chart.draw_series([bar])?;
            let quartiles = vec![(middle, time(contender.p25_us)), (middle, time(contender.p75_us))];
            chart.draw_series([PathElement::new(quartiles, BLACK)])?;
            let (x, y) = chart.backend_coord(&(middle, floor));
            let small = style(number_px, &PEER).pos(Pos::new(HPos::Center, VPos::Center));
            area.draw(&Text::new((number + 1).to_string(), (x - base_x, y - base_y + 10), small))?;
        }
        let (x, y) = chart.backend_coord(&(n as f64 + 0.5, floor));
        let place = (x - base_x, y - base_y + 10 + NUMBERS_PX as i32);
        if is_upright {
            let upright = style(TEXT_PX, &BLACK).transform(FontTransform::Rotate270);
            let upright = upright.pos(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(row.cell.clone(), (place.0, place.1 - 8), upright))?;
        } else {
            text(area, place, HPos::Center, BLACK, &row.cell)?;
        }
    }
    for (n, name) in names.iter().enumerate() {
        let colour = if is_ours(name) { OURS } else { BLACK };
        let y = HEAD_PX as i32 + 20 + (LEGEND_LINE_PX as usize * n) as i32;
        text(area, (LEGEND_LEFT_PX, y), HPos::Left, colour, &format!("{} {name}", n + 1))?;
    }
    Ok(())
}

fn is_ours(name: &str) -> bool {
    name.contains("Untorn")
}
