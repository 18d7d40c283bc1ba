//! Power cuts over the memory of a live heap that needs flushes. A recording follows the flushes and fences of this
//! process, and knows so which lines of the memory are durable. At a power cut the memory has these, and of the other
//! stores any aligned parts of eight bytes. A cache may also write lines back by itself, at any time before that. The
//! file is as long as it was at its last flush, or as it is.

use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::{File, OpenOptions, create_dir_all};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ThreadId;
use untorn_os::{LIVE_HEAD_BYTES, LIVE_OWN_BYTES, LineEvent, observe_lines};

const LINE: usize = 64;
/// The offset of the logs of sections, and the bytes of each. Only the first logs are used, and only their beginnings.
const LOGS_AT: u64 = 4 << 20;
const LOG_BYTES: u64 = 1 << 20;
const LOGS: u64 = 4;
const LOG_USED: u64 = 128 << 10;
/// The offset of the boot in the head.
const BOOT_AT: u64 = 16;

/// The parts of a memory file that are not holes: their offsets and bytes.
#[derive(Clone)]
struct Parts(Vec<(u64, Vec<u8>)>);

impl Parts {
    fn ranges(len: u64) -> impl Iterator<Item = Range<u64>> {
        let logs = (0..LOGS).map(|log| LOGS_AT + log * LOG_BYTES..LOGS_AT + log * LOG_BYTES + LOG_USED);
        std::iter::once(0..LIVE_OWN_BYTES as u64).chain(logs).chain(std::iter::once(LIVE_HEAD_BYTES as u64..len))
    }

    fn read(file: &File) -> io::Result<Parts> {
        let len = file.metadata()?.len();
        let part = |range: Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_exact_at(&mut bytes, range.start).map(|()| (range.start, bytes))
        };
        Ok(Parts(Parts::ranges(len).map(part).collect::<io::Result<_>>()?))
    }

    fn zeros(len: u64) -> Parts {
        Parts(Parts::ranges(len).map(|range| (range.start, vec![0; (range.end - range.start) as usize])).collect())
    }

    /// Makes the last part, the heap, as long as that of another.
    fn grow_like(&mut self, other: &Parts) {
        let len = other.0.last().map_or(0, |last| last.1.len());
        if let Some(last) = self.0.last_mut() {
            last.1.resize(len, 0);
        }
    }

    fn line(&mut self, offset: u64) -> Option<&mut [u8]> {
        self.0.iter_mut().find_map(|(start, bytes)| {
            let at = offset.checked_sub(*start)? as usize;
            bytes.get_mut(at..at + LINE)
        })
    }
}

/// The memory after a power cut: where it differs from the memory at the beginning of the recording.
struct Left {
    first: Arc<Parts>,
    /// The bytes of the last part, the heap, as far as the file's length is there.
    len: usize,
    lines: Vec<(u64, [u8; LINE])>,
    /// Whether the file's name is durable.
    is_named: bool,
}

impl Left {
    fn new(first: &Arc<Parts>, now: &Parts, len: u64, is_named: bool) -> Left {
        let mut lines = Vec::new();
        for ((start, now), (_, first)) in now.0.iter().zip(&first.0) {
            for (nth, line) in now.chunks_exact(LINE).enumerate() {
                let at = nth * LINE;
                if *line != *first.get(at..at + LINE).unwrap_or(&[0; LINE]) {
                    lines.push((start + at as u64, line.try_into().expect("a line")));
                }
            }
        }
        let len = len.saturating_sub(LIVE_HEAD_BYTES as u64) as usize;
        Left { first: first.clone(), len: now.0.last().map_or(0, |last| last.1.len().min(len)), lines, is_named }
    }

    fn parts(&self) -> Parts {
        let mut parts = (*self.first).clone();
        if let Some(last) = parts.0.last_mut() {
            last.1.resize(self.len, 0);
        }
        for (offset, line) in &self.lines {
            if let Some(into) = parts.line(*offset) {
                into.copy_from_slice(line);
            }
        }
        parts
    }
}

/// The memory as a power cut left it, and the state of the program at that moment.
pub struct Image<M> {
    left: Left,
    /// The program's account of itself.
    pub moment: M,
}

impl<M> Image<M> {
    /// Makes this the memory at a path, as another boot finds it.
    pub fn put(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        if let Some(dir) = path.parent() {
            create_dir_all(dir)?;
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711))?;
        }
        let _ = std::fs::remove_file(path);
        if !self.left.is_named {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        for (start, bytes) in &self.left.parts().0 {
            file.write_all_at(bytes, *start)?;
        }
        file.write_all_at(&0xb007u64.to_ne_bytes(), BOOT_AT)
    }
}

/// A recording, without the type of its moments.
struct Recording {
    path: PathBuf,
    /// None: the memory is not made yet.
    file: Option<File>,
    /// Addresses of this process that show the memory, each with the offset there.
    shown: Vec<(Range<usize>, u64)>,
    first: Arc<Parts>,
    durable: Parts,
    /// The length of the file that is durable.
    len: u64,
    /// Whether the file's name is durable.
    is_named: bool,
    /// Lines that threads have flushed and not fenced.
    pending: HashMap<ThreadId, Vec<Flushed>>,
    /// The number of flushes so far.
    flushes: u64,
    /// The last flush of each line that is durable: an earlier one that another thread fences later changes nothing.
    landed: HashMap<u64, u64>,
    rng: Rng,
    /// A power cut is tried at one of so many events. 0: at none.
    one_in: u32,
    take: Box<dyn FnMut(Left) + Send>,
    /// Called before each event, in its thread.
    before: Option<Before>,
    failed: Option<String>,
}

/// A line that was flushed.
struct Flushed {
    nth: u64,
    offset: u64,
    line: [u8; LINE],
}

type Before = Arc<dyn Fn(LineEvent) + Send + Sync>;

static NOW: Mutex<Option<Recording>> = Mutex::new(None);

/// Held by the one recording.
static ONE: Mutex<()> = Mutex::new(());

impl Recording {
    /// The offset in the memory of an address of this process. None: it shows something else.
    fn offset_of(&mut self, address: usize) -> Option<u64> {
        let find = |shown: &[(Range<usize>, u64)]| {
            let (range, offset) = shown.iter().find(|(range, _)| range.contains(&address))?;
            Some(offset + (address - range.start) as u64)
        };
        find(&self.shown).or_else(|| {
            self.shown = shown(&self.path);
            find(&self.shown)
        })
    }

    fn open(&mut self) -> io::Result<&File> {
        if self.file.is_none() {
            self.file = Some(File::open(&self.path)?);
        }
        self.file.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }

    fn current(&mut self) -> io::Result<Parts> {
        let current = Parts::read(self.open()?)?;
        self.durable.grow_like(&current);
        Ok(current)
    }

    fn on(&mut self, event: LineEvent) -> io::Result<()> {
        let thread = std::thread::current().id();
        let offset = match event {
            LineEvent::Flush(address) | LineEvent::Sync(address) | LineEvent::Name(address) => {
                match self.offset_of(address) {
                    None => return Ok(()),
                    offset => offset,
                }
            }
            LineEvent::Fence if self.pending.get(&thread).is_none_or(Vec::is_empty) => return Ok(()),
            LineEvent::Fence => None,
        };
        // Many lines are flushed in a row, and fences order them.
        let one_in = if matches!(event, LineEvent::Flush(_)) { self.one_in * 32 } else { self.one_in };
        if self.one_in == 1 || one_in > 0 && self.rng.u32(..one_in) == 0 {
            let left = self.cut()?;
            // The file system may have written a new length by itself.
            let len = if self.rng.bool() { self.len } else { self.open()?.metadata()?.len() };
            (self.take)(Left::new(&self.first, &left, len, self.is_named));
        }
        if one_in > 0 && self.rng.u32(..one_in) == 0 {
            self.write_back()?;
        }
        match (event, offset) {
            (LineEvent::Flush(_), Some(offset)) => {
                let mut line = [0; LINE];
                self.open()?.read_exact_at(&mut line, offset)?;
                self.flushes += 1;
                self.pending.entry(thread).or_default().push(Flushed { nth: self.flushes, offset, line });
            }
            (LineEvent::Fence, _) => {
                let lines = self.pending.remove(&thread).unwrap_or_default();
                if lines.iter().any(|flushed| self.durable.line(flushed.offset).is_none()) {
                    // The heap has grown.
                    self.current()?;
                }
                for Flushed { nth, offset, line } in lines {
                    let durable = self.durable.line(offset);
                    let durable = durable.ok_or_else(|| io::Error::other(format!("{offset} is not followed")))?;
                    let landed = self.landed.entry(offset).or_default();
                    if nth > *landed {
                        *landed = nth;
                        durable.copy_from_slice(&line);
                    }
                }
            }
            (LineEvent::Sync(_), _) => {
                self.durable = self.current()?;
                self.pending.clear();
                self.len = self.open()?.metadata()?.len();
            }
            (LineEvent::Name(_), _) => self.is_named = true,
            (LineEvent::Flush(_), None) => {}
        }
        Ok(())
    }

    /// The cache writes lines back. Their present bytes are durable, also if they are stored to again.
    fn write_back(&mut self) -> io::Result<()> {
        let mut written = self.cut()?;
        for Flushed { offset, line, .. } in self.pending.values_mut().flatten() {
            let (Some(old), Some(new)) = (self.durable.line(*offset), written.line(*offset)) else { continue };
            let words = line.chunks_mut(8).zip(old.chunks(8).zip(new.chunks(8)));
            words.filter(|(_, (old, new))| old != new).for_each(|(flushed, (_, new))| flushed.copy_from_slice(new));
        }
        self.durable = written;
        Ok(())
    }

    /// The memory after a power cut now.
    fn cut(&mut self) -> io::Result<Parts> {
        let current = self.current()?;
        let mut left = self.durable.clone();
        let share = self.rng.choice([0, 1, 4, 7, 8]).unwrap_or(0);
        for ((_, left), (_, current)) in left.0.iter_mut().zip(&current.0) {
            for (left, current) in left.chunks_mut(LINE).zip(current.chunks(LINE)).filter(|(left, now)| left != now) {
                let is_torn = self.rng.u8(..4) == 0;
                let whole = self.rng.u32(..8) < share;
                for (left, current) in left.chunks_mut(8).zip(current.chunks(8)) {
                    if if is_torn { self.rng.bool() } else { whole } {
                        left.copy_from_slice(current);
                    }
                }
            }
        }
        Ok(left)
    }
}

/// The addresses of this process that show a file, with the offset there.
fn shown(path: &Path) -> Vec<(Range<usize>, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let name = path.to_string_lossy();
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let (addresses, offset) = (words.next()?, words.nth(1)?);
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = addresses.split_once('-')?;
        Some((hex(start)? as usize..hex(end)? as usize, hex(offset)?))
    };
    maps.lines().filter(|line| line.ends_with(&*name)).filter_map(parse).collect()
}

/// A recording of the flushes of this process. One exists at a time.
pub struct PowerCuts<M> {
    _one: MutexGuard<'static, ()>,
    images: Arc<Mutex<Vec<Image<M>>>>,
}

impl<M: Send + 'static> PowerCuts<M> {
    /// Begins a recording over the memory at a path, of which everything is durable so far; it may be missing yet. A power
    /// cut is tried at one of so many events; 0: at none. `moment` gives the program's account of itself.
    pub fn begin(
        path: &Path,
        seed: u64,
        one_in: u32,
        moment: impl Fn() -> M + Send + 'static,
    ) -> Result<PowerCuts<M>, String> {
        let one = ONE.lock();
        observe_lines(Box::new(|event| {
            let before = NOW.lock().as_ref().and_then(|recording| recording.before.clone());
            before.into_iter().for_each(|before| before(event));
            if let Some(recording) = &mut *NOW.lock()
                && let Err(e) = recording.on(event)
            {
                recording.failed = Some(format!("{event:?}: {e}"));
            }
        }));
        let images = Arc::new(Mutex::new(Vec::new()));
        let taken = images.clone();
        let file = File::open(path).ok();
        let is_named = file.is_some();
        let durable = file.as_ref().map(Parts::read).transpose().map_err(|e| e.to_string())?;
        let durable = durable.unwrap_or_else(|| Parts::zeros(LIVE_HEAD_BYTES as u64));
        let len =
            file.as_ref().map(File::metadata).transpose().map_err(|e| e.to_string())?.map_or(0, |meta| meta.len());
        *NOW.lock() = Some(Recording {
            path: path.to_owned(),
            file,
            shown: Vec::new(),
            first: Arc::new(durable.clone()),
            durable,
            len,
            is_named,
            pending: HashMap::new(),
            flushes: 0,
            landed: HashMap::new(),
            rng: Rng::with_seed(seed),
            one_in,
            take: Box::new(move |left| taken.lock().push(Image { left, moment: moment() })),
            before: None,
            failed: None,
        });
        Ok(PowerCuts { _one: one, images })
    }

    /// Calls a function before each event, in the thread that makes it. Other threads go on meanwhile.
    pub fn before_each(&self, then: impl Fn(LineEvent) + Send + Sync + 'static) {
        if let Some(recording) = &mut *NOW.lock() {
            recording.before = Some(Arc::new(then));
        }
    }

    /// The memory after a power cut that takes all stores but the durable ones.
    pub fn least(&self, moment: M) -> Result<Image<M>, String> {
        let mut now = NOW.lock();
        let recording = now.as_mut().ok_or("no recording")?;
        recording.current().map_err(|e| e.to_string())?;
        Ok(Image { left: Left::new(&recording.first, &recording.durable, recording.len, recording.is_named), moment })
    }

    /// Ends the recording; returns the memory after the power cuts that were tried.
    pub fn end(self) -> Result<Vec<Image<M>>, String> {
        match NOW.lock().take().and_then(|recording| recording.failed) {
            Some(e) => Err(e),
            None => Ok(std::mem::take(&mut *self.images.lock())),
        }
    }
}

impl<M> Drop for PowerCuts<M> {
    fn drop(&mut self) {
        *NOW.lock() = None;
    }
}
