//! The output of `untorn check heap` and `untorn dump heap`.

use crate::json;
use std::path::PathBuf;
use untorn::heap::{HeapChunk, HeapReport};
use untorn_terminal::Failure;
use untorn_terminal::table::{bytes, count, pairs, table};

/// The target of the command: `PATH`, or `heap PATH`.
#[derive(clap::Args)]
pub struct Target {
    /// A store's directory, or a file with its own store. After the word `heap`: a heap's file.
    #[arg(required = true, num_args = 1.., value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    words: Vec<PathBuf>,
}

impl Target {
    /// The path, and whether the heap in it is meant. A path `heap` alone is that of a store.
    pub fn path(self) -> Result<(PathBuf, bool), Failure> {
        match <[PathBuf; 2]>::try_from(self.words) {
            Ok([word, path]) if word.as_os_str() == "heap" => Ok((path, true)),
            Err(mut words) if words.len() == 1 => Ok((words.remove(0), false)),
            _ => Err(Failure::new("give one PATH, or the word `heap` and one PATH").code(2)),
        }
    }
}

/// The characters in a line of the map: the chunks of a segment.
const MAP_COLUMNS: usize = 64;
/// The lines of the map. If the heap is longer, each character stands for several chunks.
const MAP_LINES: usize = 64;
const CHUNK_BYTES: u64 = 64 << 10;

/// The report for programs, as JSON.
pub fn json(found: &HeapReport) -> Result<serde_json::Value, Failure> {
    let mut value = json::value(found)?;
    value["sound"] = found.is_sound_with_live().into();
    Ok(value)
}

/// The text of `untorn check heap`.
pub fn check_text(found: &HeapReport, collected: bool, note: &str) -> String {
    let mut text = head(found) + note;
    for problem in &found.problems {
        text += &format!("PROBLEM  {problem}\n");
    }
    if found.problems_more > 0 {
        text += &format!("PROBLEM  and {} more\n", found.problems_more);
    }
    if let Some(leaks) = &found.leaks {
        for leak in &leaks.largest {
            text += &format!("  leak  {:#x}  {}\n", leak.address, bytes(leak.bytes));
        }
        if leaks.count > leaks.largest.len() as u64 {
            text += &format!("  and {} more\n", leaks.count - leaks.largest.len() as u64);
        }
        let all = format!("{}, {}", count(leaks.count, "allocation", "allocations"), bytes(leaks.bytes));
        text += &match (leaks.count, collected) {
            (0, _) => String::new(),
            (_, true) => format!("reclaimed what no root reaches: {all}\n"),
            (_, false) => format!("no root reaches {all}; `untorn check heap --gc` reclaims them\n"),
        };
    }
    if let Some(pointers) = &found.pointers {
        for pointer in &pointers.first {
            text += &format!("POINTER  {pointer}\n");
        }
        if pointers.count > pointers.first.len() as u64 {
            text += &format!("POINTER  and {} more\n", pointers.count - pointers.first.len() as u64);
        }
        text += match pointers.count {
            0 => "no pointers out of the heap\n",
            _ => "these may be pointers out of the heap, which are invalid after a restart\n",
        };
    }
    text + match (found.is_sound(), found.is_sound_with_live()) {
        (true, true) => "sound\n",
        (true, false) => "the last cut is sound; the memory is not\n",
        (false, _) => "not sound; leaks were not looked for\n",
    }
}

/// The text of `untorn dump heap`.
pub fn dump_text(found: &HeapReport) -> String {
    let mut text = head(found);
    let blocks_of = found.classes.iter().map(|class| {
        let used = class.used * class.block_bytes;
        let of = class.chunks * CHUNK_BYTES;
        [
            format!("{} B", class.block_bytes),
            class.chunks.to_string(),
            class.blocks.to_string(),
            class.used.to_string(),
            bytes(used),
            percent(used, of),
        ]
        .to_vec()
    });
    let rows: Vec<_> = blocks_of.collect();
    if !rows.is_empty() {
        let head = ["blocks of", "chunks", "blocks", "in use", "bytes in use", "occupancy"];
        text += &format!("\n{}", table(&head, &rows));
    }
    if !found.roots.is_empty() {
        let roots = found.roots.iter().map(|root| {
            [
                root.name.escape_debug().to_string(),
                root.type_name.escape_debug().to_string(),
                root.version.to_string(),
                format!("{} B", root.size),
                root.align.to_string(),
                format!("{:#x}", root.address),
            ]
            .to_vec()
        });
        let head = ["root", "type", "version", "size", "alignment", "address"];
        text += &format!("\n{}", table(&head, &roots.collect::<Vec<_>>()));
    }
    text += &format!("\n{}", map(&found.chunks));
    for problem in &found.problems {
        text += &format!("PROBLEM  {problem}\n");
    }
    text
}

fn head(found: &HeapReport) -> String {
    let blocks: u64 = found.classes.iter().map(|class| class.used).sum();
    let block_bytes: u64 = found.classes.iter().map(|class| class.used * class.block_bytes).sum();
    let chunk_bytes = found.classes.iter().map(|class| class.chunks).sum::<u64>() * CHUNK_BYTES;
    let whole = |of: &untorn::heap::HeapLarge, unit: &str| {
        let asked = if of.count > 0 { format!(" ({} asked for)", bytes(of.asked_bytes)) } else { String::new() };
        format!("{} of whole {unit}, {}{asked}", count(of.count, "allocation", "allocations"), bytes(of.bytes))
    };
    pairs(&[
        ("heap", found.path.display().to_string()),
        ("address", format!("{:#x}, with {} of address space", found.address, bytes(found.address_space_bytes))),
        ("size", format!("{}, of it {} metadata", bytes(found.heap_bytes), bytes(found.metadata_bytes))),
        ("blocks", format!("{blocks} in use, {} of {}", bytes(block_bytes), bytes(chunk_bytes))),
        ("large", whole(&found.large, "chunks")),
        ("huge", whole(&found.huge, "segments")),
        ("free", format!("{} for anything", bytes(found.free_bytes))),
        ("roots", found.roots.len().to_string()),
    ])
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / whole.max(1) as f64)
}

/// The map: a character for each chunk, or for so many chunks that the map fits on a page.
fn map(chunks: &[HeapChunk]) -> String {
    let each = chunks.len().div_ceil(MAP_COLUMNS * MAP_LINES).max(1);
    let mut text = match each {
        1 => "a line for each segment of 4 MiB, a character for each chunk of 64 KiB:\n".to_owned(),
        n => format!(
            "a character for every {n} chunks of 64 KiB, {} a line:\n",
            bytes((n * MAP_COLUMNS) as u64 * CHUNK_BYTES)
        ),
    };
    text += "M metadata, . free, 0 to 9 blocks, so many tenths of them in use, # all of them, L large, H huge\n";
    for (n, line) in chunks.chunks(MAP_COLUMNS * each).enumerate() {
        let picture: String = line.chunks(each).map(character).collect();
        text += &format!("{:>12}  {picture}\n", bytes((n * MAP_COLUMNS * each) as u64 * CHUNK_BYTES));
    }
    text
}

/// The character for some chunks. If all are of one kind, it shows the kind; a mixture shows how much of it is in use.
/// Metadata is shown only if it is alone.
fn character(chunks: &[HeapChunk]) -> char {
    let chunks: Vec<_> = chunks.iter().filter(|chunk| **chunk != HeapChunk::Metadata).collect();
    let Some(first) = chunks.first() else { return 'M' };
    match first {
        HeapChunk::Free if chunks.iter().all(|chunk| chunk == first) => '.',
        HeapChunk::Large if chunks.iter().all(|chunk| chunk == first) => 'L',
        HeapChunk::Huge if chunks.iter().all(|chunk| chunk == first) => 'H',
        _ => {
            let share = |chunk: &HeapChunk| match chunk {
                HeapChunk::Blocks { used, of } => f64::from(*used) / f64::from(*of),
                HeapChunk::Large | HeapChunk::Huge => 1.0,
                HeapChunk::Free | HeapChunk::Metadata => 0.0,
            };
            let used = chunks.iter().map(|chunk| share(chunk)).sum::<f64>() / chunks.len() as f64;
            if used >= 1.0 { '#' } else { char::from(b'0' + (used * 10.0) as u8) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shows_each_chunk_or_many_in_one() {
        let blocks = |used| HeapChunk::Blocks { used, of: 10 };
        let mut chunks = vec![HeapChunk::Free; 64];
        let kinds = [HeapChunk::Metadata, blocks(0), blocks(3), blocks(10), HeapChunk::Large, HeapChunk::Huge];
        chunks[..6].copy_from_slice(&kinds);
        assert!(map(&chunks).ends_with(&format!("M03#LH{}\n", ".".repeat(58))), "{}", map(&chunks));
        let long = map(&chunks.repeat(1000));
        assert!(long.lines().count() <= MAP_LINES + 2, "{long}");
        assert_eq!(character(&[blocks(10), HeapChunk::Free]), '5');
        assert_eq!(character(&[HeapChunk::Metadata, HeapChunk::Free, HeapChunk::Free]), '.');
    }
}
