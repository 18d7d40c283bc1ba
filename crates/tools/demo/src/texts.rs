//! The texts that become records, from real files.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use untorn_terminal::Failure;

/// The package databases of common systems, then other places with text.
const CANDIDATES: [&str; 6] = [
    "/var/lib/dpkg/status",
    "/lib/apk/db/installed",
    "/var/lib/pacman/local",
    "/usr/share/dict/words",
    "/usr/share/doc",
    "/usr/share",
];
const TEXTS_MIN: usize = 64;
const TEXTS_MAX: usize = 4000;
const TEXT_BYTES_MAX: usize = 32 << 10;
const ALL_BYTES_MAX: u64 = 8 << 20;
/// Files without paragraphs are cut into pieces of this size.
const PIECE_BYTES: usize = 700;

/// Finds the texts. Returns their source, too.
pub fn find(named: Option<&Path>) -> Result<(PathBuf, Vec<Vec<u8>>), Failure> {
    let candidates: Vec<&Path> = match named {
        Some(path) => vec![path],
        None => CANDIDATES.iter().map(Path::new).collect(),
    };
    for path in &candidates {
        match read(path) {
            Ok(texts) if !texts.is_empty() => return Ok((path.to_path_buf(), enough(texts))),
            Err(e) if named.is_some() => return Err(Failure::io("read", path, e)),
            _ => {}
        }
    }
    let names: Vec<_> = candidates.iter().map(|p| p.display().to_string()).collect();
    Err(Failure::new(format!("{}: no text to make records of; name a file or a directory", names.join(", "))))
}

fn read(path: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut texts = Vec::new();
    if fs::metadata(path)?.is_dir() {
        collect(path, &mut texts, &mut ALL_BYTES_MAX.clone())?;
    } else {
        let mut all = Vec::new();
        fs::File::open(path)?.take(ALL_BYTES_MAX).read_to_end(&mut all)?;
        texts = paragraphs(&all);
        if texts.len() < TEXTS_MIN {
            texts = all.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect();
        }
    }
    texts.truncate(TEXTS_MAX);
    texts.iter_mut().for_each(|text| text.truncate(TEXT_BYTES_MAX));
    Ok(texts)
}

fn paragraphs(all: &[u8]) -> Vec<Vec<u8>> {
    let lines = all.split_inclusive(|&b| b == b'\n').collect::<Vec<_>>();
    let blocks = lines.split(|line| *line == b"\n").map(<[&[u8]]>::concat);
    blocks.filter(|block| !block.is_empty()).collect()
}

/// Adds each regular file below a directory as a text. Files that cannot be read are skipped.
fn collect(dir: &Path, texts: &mut Vec<Vec<u8>>, left_bytes: &mut u64) -> std::io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if texts.len() >= TEXTS_MAX || *left_bytes == 0 {
            break;
        }
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            let _ = collect(&entry.path(), texts, left_bytes);
        } else if kind.is_file() {
            let mut text = Vec::new();
            let limit = (TEXT_BYTES_MAX as u64).min(*left_bytes);
            let read = fs::File::open(entry.path()).and_then(|f| f.take(limit).read_to_end(&mut text));
            if read.is_ok_and(|n| n > 0) {
                *left_bytes -= text.len() as u64;
                texts.push(text);
            }
        }
    }
    Ok(())
}

/// Repeats texts if there are few, because an update must have many records to choose from.
fn enough(mut texts: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    for n in 0..TEXTS_MIN.saturating_sub(texts.len()) {
        texts.push(texts[n].clone());
    }
    texts
}

/// Stores the texts for the child.
pub fn save(path: &Path, texts: &[Vec<u8>]) -> Result<(), Failure> {
    let bytes = texts.iter().flat_map(|text| [&(text.len() as u64).to_le_bytes()[..], text].concat());
    fs::write(path, bytes.collect::<Vec<u8>>()).map_err(|e| Failure::io("write", path, e))
}

/// Reads the texts that [`save`] stored.
pub fn load(path: &Path) -> Result<Vec<Vec<u8>>, Failure> {
    let all = fs::read(path).map_err(|e| Failure::io("read", path, e))?;
    let (mut rest, mut texts) = (&all[..], Vec::new());
    while let Some((len, tail)) = rest.split_first_chunk::<8>() {
        let len = u64::from_le_bytes(*len) as usize;
        let (text, tail) = tail.split_at_checked(len).ok_or_else(|| Failure::new("the child's texts are cut off"))?;
        texts.push(text.to_vec());
        rest = tail;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_become_texts_and_survive_the_way_to_the_child() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("sub/file");
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(&file, (0..100).map(|n| format!("Package: p{n}\nStatus: ok\n\n")).collect::<String>()).unwrap();
        let (_, by_file) = find(Some(&file)).unwrap();
        assert_eq!((by_file.len(), &by_file[99][..]), (100, &b"Package: p99\nStatus: ok\n"[..]));

        let (_, by_dir) = find(Some(dir.path())).unwrap();
        assert_eq!(by_dir.len(), TEXTS_MIN);
        assert_eq!(by_dir[TEXTS_MIN - 1], fs::read(&file).unwrap());

        save(&dir.path().join("saved"), &by_file).unwrap();
        assert_eq!(load(&dir.path().join("saved")).unwrap(), by_file);

        fs::write(&file, "").unwrap();
        assert!(find(Some(&file)).unwrap_err().message.contains("no text"));
        assert!(find(Some(&dir.path().join("absent"))).is_err());
    }
}
