//! Group commit: whoever comes first leads, and takes along everybody who has come by then.

use crate::checkpoint::Side;
use crate::names::{NameOp, Names};
use crate::store::{Inner, lock};
use crate::sync::{Instant, MutexGuard, thread};
use crate::ticket::Slot;
use crate::view::{FileShared, Life, View, spill_staged, with_whole_pages};
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;
use untorn_journal::apply::{Applier, Place, open_for_writing};
use untorn_journal::care::{Care, kept};
use untorn_journal::format::Attribute;
use untorn_journal::journal::Committed;
use untorn_journal::record::{FileRef, Record};
use untorn_journal::recovery::flush_one_by_one;
use untorn_journal::state::FinalState;
use untorn_journal::{Context, Error, Outcome, Result};
use untorn_os::Step;

/// The longest wait for others to join a group.
const GATHER_MOST: Duration = Duration::from_micros(200);

/// Commits that wait for the next group.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Request>,
    /// Somebody is writing a group.
    leading: bool,
    /// Threads that wait for a commit of theirs now, and the most that did during the last group.
    inside: usize,
    inside_most: usize,
    /// How long the last group took.
    took: Duration,
}

/// One commit.
pub(crate) struct Request {
    /// Files with changes: each has a layer on its way for every request that names it, in order.
    parts: Vec<Arc<FileShared>>,
    names: Vec<NameOp>,
    /// A transaction that fails is aborted; other changes become uncommitted ones again.
    is_txn: bool,
    slot: Arc<Slot>,
}

impl Inner {
    /// Takes the staged changes of these files as one commit and queues it. With a transaction, the
    /// files are its own.
    pub(crate) fn submit(&self, files: &[Arc<FileShared>], txn: Option<(u64, Vec<NameOp>)>) -> Result<Arc<Slot>> {
        let txn_id = txn.as_ref().map(|(id, _)| *id);
        let names = txn.map(|(_, names)| names).unwrap_or_default();
        if self.failed.load(SeqCst)
            && let Some(e) = lock(&self.side).journal.failure()
        {
            let taken = |view: &View| view.uncertain && view.staged.is_empty();
            return Err(if files.iter().any(|f| taken(&f.read())) { perhaps(e) } else { e });
        }
        for file in files.iter().filter(|f| f.read().region.is_some()) {
            file.write().absorb(self)?;
        }
        self.prepare(files)?;
        let slot = Arc::new(Slot::default());
        let mut queue = lock(&self.queue);
        self.check_usable()?;
        for file in files {
            file.read().check_commit(txn_id)?;
        }
        let mut parts = Vec::with_capacity(files.len());
        for file in files {
            let mut view = file.write();
            // Changes that another's commit has on its way are this one's, too: should that fail, they are
            // this one's alone.
            if view.staged.is_empty() && view.committing.is_empty() && txn_id.is_none() {
                continue;
            }
            view.take_staged();
            view.txn = None;
            parts.push(file.clone());
        }
        queue.waiting.push_back(Request { parts, names, is_txn: txn_id.is_some(), slot: slot.clone() });
        Ok(slot)
    }

    /// The same, with somebody to write it while the caller goes on.
    pub(crate) fn submit_async(&self, files: &[Arc<FileShared>], txn: Option<(u64, Vec<NameOp>)>) -> Result<Arc<Slot>> {
        let slot = self.submit(files, txn)?;
        self.background.wake();
        Ok(slot)
    }

    /// Large commits go by reference.
    fn prepare(&self, files: &[Arc<FileShared>]) -> Result<()> {
        let mut inline = 0;
        for file in files {
            inline += file.read().staged.memory_bytes();
        }
        if inline > self.options.journal.inline_bytes_max {
            inline = files.iter().map(|f| f.read().staged.inline_bytes()).sum();
        }
        if inline > self.options.journal.inline_bytes_max {
            let extent = self.create_extent()?;
            for file in files {
                let view = &mut *file.write();
                if view.staged.inline_bytes() == 0 {
                    continue;
                }
                match &view.spill {
                    Some(_) => spill_staged(view, self, 1)?,
                    None => view.staged.spill(&extent, 1)?,
                }
            }
        }
        Ok(())
    }

    /// Waits for a commit, leading a group if nobody does.
    pub(crate) fn finish(&self, slot: &Slot) -> Result<()> {
        {
            let mut queue = lock(&self.queue);
            queue.inside += 1;
            queue.inside_most = queue.inside_most.max(queue.inside);
        }
        let result = self.wait_or_lead(slot);
        lock(&self.queue).inside -= 1;
        result
    }

    fn wait_or_lead(&self, slot: &Slot) -> Result<()> {
        loop {
            if let Some(result) = slot.get() {
                return result;
            }
            if self.lead_once() {
                continue;
            }
            let queue = lock(&self.queue);
            if slot.get().is_none() && (queue.leading || queue.waiting.is_empty()) {
                drop(self.queue_changed.wait(queue).unwrap_or_else(|e| e.into_inner()));
            }
        }
    }

    /// Writes one group, unless somebody else does or nobody waits.
    pub(crate) fn lead_once(&self) -> bool {
        let mut queue = lock(&self.queue);
        if queue.leading || queue.waiting.is_empty() {
            return false;
        }
        queue.leading = true;
        let mut queue = self.gather(queue);
        let group = std::mem::take(&mut queue.waiting);
        queue.inside_most = queue.inside;
        drop(queue);
        let start = Instant::now();
        self.write_group(group);
        {
            let mut queue = lock(&self.queue);
            queue.leading = false;
            queue.took = start.elapsed();
        }
        self.queue_changed.notify_all();
        self.background.note_commit();
        self.nudge();
        true
    }

    /// Those who shared the last flush, or waited for it, are about to come again: a moment's wait for
    /// them, at most a quarter of a flush, spares them a flush of their own. Who is alone never waits.
    fn gather<'a>(&'a self, mut queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        let expected = queue.inside_most;
        if expected <= 1 || queue.waiting.len() >= expected {
            return queue;
        }
        let (start, most) = (Instant::now(), (queue.took / 4).min(GATHER_MOST));
        while queue.waiting.len() < expected && start.elapsed() < most {
            drop(queue);
            thread::yield_now();
            queue = lock(&self.queue);
        }
        queue
    }

    /// Finishes everything that waits.
    pub(crate) fn drain(&self) {
        loop {
            while self.lead_once() {}
            let queue = lock(&self.queue);
            if !queue.leading && queue.waiting.is_empty() {
                return;
            }
            if queue.leading {
                drop(self.queue_changed.wait(queue).unwrap_or_else(|e| e.into_inner()));
            }
        }
    }

    /// Commits with names go alone, as each is judged by the names that the one before left.
    fn write_group(&self, mut group: VecDeque<Request>) {
        while !group.is_empty() {
            let plain = group.iter().take_while(|r| r.names.is_empty()).count();
            let now: Vec<Request> = group.drain(..plain.max(1)).collect();
            self.write_some(now);
        }
    }

    /// One flush, or several if the journal is full in between.
    fn write_some(&self, mut requests: Vec<Request>) {
        let mut waited = false;
        while !requests.is_empty() {
            let before = lock(&self.side).journal.header().through;
            match self.try_write(&requests) {
                Ok(0) => {
                    if !std::mem::replace(&mut waited, true) {
                        self.commits_waited.fetch_add(requests.len() as u64, Relaxed);
                    }
                    let full = match self.checkpoint() {
                        Err(e) => Some(e),
                        Ok(()) if lock(&self.side).journal.header().through == before => Some(self.pinned()),
                        Ok(()) => None,
                    };
                    if let Some(e) = full {
                        return self.fail_all(requests, &e);
                    }
                }
                Ok(n) => {
                    waited = false;
                    for request in requests.drain(..n) {
                        request.slot.fill(Ok(()));
                    }
                }
                Err(e) => {
                    // Of a group that cannot be written, one may be to blame: the others try alone.
                    if requests.len() > 1 && lock(&self.side).journal.failure().is_none() {
                        for request in requests {
                            self.write_some(vec![request]);
                        }
                        return;
                    }
                    return self.fail_all(requests, &e);
                }
            }
        }
    }

    /// None of these happened, or nobody knows. What did not happen is uncommitted again.
    fn fail_all(&self, requests: Vec<Request>, e: &Error) {
        if matches!(e, Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, .. }) {
            for request in requests {
                request.parts.iter().for_each(|file| file.write().committed_perhaps());
                request.slot.fill(Err(e.clone()));
            }
            return;
        }
        let mut layers: HashMap<u64, usize> = HashMap::new();
        for file in requests.iter().flat_map(|r| &r.parts) {
            *layers.entry(file.id).or_insert(0) += 1;
        }
        for request in requests.into_iter().rev() {
            let mut e = e.clone();
            for file in &request.parts {
                let nth = layers.get_mut(&file.id).expect("counted above");
                *nth -= 1;
                let mut view = file.write();
                if view.uncertain && view.committing[*nth].is_empty() {
                    e = perhaps(e);
                }
                view.uncommit(self, *nth, request.is_txn);
            }
            request.slot.fill(Err(e));
        }
    }

    fn pinned(&self) -> Error {
        let quarantined = lock(&self.files).values().find_map(|f| {
            let view = f.read();
            view.quarantine.as_ref().map(|why| format!("{}: {why}", view.path.display()))
        });
        Error::NoSpace {
            detail: match quarantined {
                Some(why) => format!("the journal is full and cannot be given up, because of {why}"),
                None => "the commit is larger than the journal".to_owned(),
            },
        }
    }

    /// Stage → seal → flush → apply, for as many requests as there is room for.
    fn try_write(&self, requests: &[Request]) -> Result<usize> {
        let mut side = lock(&self.side);
        let side = &mut *side;
        if let Some(e) = side.journal.failure() {
            return Err(e);
        }
        if !self.is_durable() && side.journal.header().boot.is_none() {
            let boot = self.storage.boot_id().context("read the boot id for", &self.path)?;
            side.journal.record_boot(boot)?;
        }
        self.check_names_made(requests, side)?;
        let first = side.journal.last() + 1;
        let mut chain = Chain::default();
        let mut staged: Vec<Staged> = Vec::with_capacity(requests.len());
        for (i, request) in requests.iter().enumerate() {
            staged.push(self.stage(request, first + i as u64, &mut chain)?);
        }
        self.flag(staged.iter().flat_map(|s| &s.files), side.journal.last())?;
        let records: Vec<Record> = staged.iter_mut().map(|s| std::mem::take(&mut s.record)).collect();
        if records.iter().all(|r| r.files.is_empty() && r.ops.is_empty()) {
            // Empty layers must not be taken for the next commit's.
            requests.iter().flat_map(|r| &r.parts).for_each(|file| file.write().committed());
            return Ok(requests.len());
        }
        let committed = side.journal.commit(&records);
        self.failed.store(side.journal.failure().is_some(), SeqCst);
        let Committed::Records { first, n } = committed? else { return Ok(0) };
        for (i, request) in requests.iter().take(n).enumerate() {
            let sequence = first + i as u64;
            for file in &request.parts {
                file.write().committed();
            }
            let Staged { files, whole_pages, .. } = &staged[i];
            for file in files {
                file.write().last = sequence;
                side.dirty.insert(file.id, file.clone());
            }
            for (file, pages) in whole_pages {
                file.write().whole_pages.extend(pages);
            }
            if !request.names.is_empty() {
                let mut state = FinalState::default();
                state.absorb(&records[i], sequence)?;
                side.dirs.extend(state.touched_dirs());
                let _renaming = self.renaming.write().unwrap_or_else(|e| e.into_inner());
                self.settle_names(files, &state);
                if !self.apply_names(&state) {
                    side.unapplied.push(state);
                }
            }
        }
        Ok(n)
    }

    /// Names are judged by what is on the disk: committed ones that could not be made so must be out of
    /// the way.
    fn check_names_made(&self, requests: &[Request], side: &mut Side) -> Result<()> {
        let paths = || requests.iter().flat_map(|r| &r.names).flat_map(NameOp::paths);
        if side.unapplied.is_empty() || paths().next().is_none() {
            return Ok(());
        }
        self.apply_waiting_names(side);
        match paths().find(|path| side.unapplied.iter().any(|state| state.has_name(path))) {
            None => Ok(()),
            Some(path) => Err(Error::Conflict {
                path: path.to_owned(),
                detail: "a change of this name is committed and could not be made yet".into(),
            }),
        }
    }

    /// A request as a record.
    fn stage(&self, request: &Request, sequence: u64, chain: &mut Chain) -> Result<Staged> {
        let mut names = Names::new(self);
        for op in &request.names {
            names.add(op)?;
        }
        let mut record = Record::default();
        let mut files: Vec<Arc<FileShared>> = Vec::new();
        let mut whole_pages = Vec::new();
        let mut index: HashMap<u64, u32> = HashMap::new();
        let mut refer = |file: &Arc<FileShared>, record: &mut Record| {
            *index.entry(file.id).or_insert_with(|| {
                let view = file.read();
                let previous = chain.last.insert(file.id, sequence).unwrap_or(view.last);
                record.files.push(FileRef { id: file.id, previous, path: view.path.clone() });
                files.push(file.clone());
                files.len() as u32 - 1
            })
        };
        for file in &request.parts {
            let nth = chain.layers.entry(file.id).or_insert(0);
            // A commit before this one may have removed the file, or failed to make it.
            file.read().check_alive()?;
            let layer = if self.options.full_page && kept(Care::FullPage) {
                let (layer, pages) = with_whole_pages(&*file.changeable(self)?, *nth)?;
                whole_pages.push((file.clone(), pages));
                Arc::new(layer)
            } else {
                file.read().committing[*nth].clone()
            };
            *nth += 1;
            if !layer.is_empty() {
                let at = refer(file, &mut record);
                record.push_layer(at, &layer);
            }
        }
        names.encode(&mut record, &mut refer);
        Ok(Staged { record, files, whole_pages })
    }

    /// Files of a first commit get their attribute, durably, before the record that needs it.
    fn flag<'a>(&self, files: impl Iterator<Item = &'a Arc<FileShared>>, through: u64) -> Result<()> {
        let fresh: Vec<_> =
            files.filter(|f| matches!(&*f.read(), v if !v.flagged && v.life == Life::Named)).cloned().collect();
        let one_by_one = flush_one_by_one(&*self.storage, fresh.len());
        for file in &fresh {
            let mut view = file.changeable(self)?;
            let Some(data) = view.data.clone() else { continue };
            let path = view.path.clone();
            if let Some(now) = crate::checkpoint::changed_outside(&view, &self.storage)? {
                return Err(now);
            }
            let attribute = Attribute {
                store: self.store_id,
                file: file.id,
                session: self.session,
                through,
                place: Attribute::place_of(&path),
                pending: true,
            };
            data.set_attribute(&attribute.encode()).map_err(|e| attribute_error(&path, e))?;
            if self.is_durable() && one_by_one {
                data.sync_all(Step::Attribute).context("flush the attribute of", &path)?;
            }
            view.last = through;
            view.flagged = !self.is_durable() || one_by_one;
        }
        if self.is_durable() && !one_by_one {
            self.storage.sync_everything(Step::AttributeMany).context("flush the attributes in", &self.path)?;
            for file in &fresh {
                file.write().flagged = true;
            }
        }
        Ok(())
    }

    /// The names are committed: the table and the files' lives follow.
    fn settle_names(&self, files: &[Arc<FileShared>], state: &FinalState) {
        let mut table = lock(&self.files);
        for file in files {
            let mut view = file.write();
            if table.get(&view.path).is_some_and(|f| Arc::ptr_eq(f, file)) {
                table.remove(&view.path);
            }
            let settled = &state.files[&file.id];
            view.renamed |= settled.names.len() > 1 || settled.mode.is_some() || settled.created.is_some();
            match &settled.name {
                Some(name) => view.path = name.clone(),
                None => view.be_gone(),
            }
            if view.life == Life::Unborn {
                // Its committed layer was dropped on the way in as long as it was unborn.
                view.life = Life::Named;
                view.flagged = true;
                view.unmarked = true;
                view.committed = settled.layer.clone();
            }
        }
        for file in files {
            let view = file.read();
            if view.life == Life::Named {
                table.insert(view.path.clone(), file.clone());
            }
        }
    }

    /// Makes committed names so. False: something could not be done now.
    pub(crate) fn apply_names(&self, state: &FinalState) -> bool {
        let limbo = self.home.journal();
        let applier =
            Applier { storage: &*self.storage, store: self.store_id, session: self.session, newest: None, limbo };
        let mut outcomes = applier.locate(state);
        let left = applier.apply_names(state, &mut outcomes);
        for e in &left {
            tracing::warn!(error = %e, "a committed change of names waits");
        }
        // Also of files that are in nobody's table any more: a committed unlink is not forgotten.
        let mut whole = left.is_empty() && outcomes.values().all(Result::is_ok);
        let files = lock(&self.files);
        let mut room = self.storage.open_files_max().saturating_sub(files.len());
        for file in files.values().filter(|f| state.files.contains_key(&f.id)) {
            let mut view = file.write();
            match &outcomes[&file.id] {
                Ok(Place::At(at)) => {
                    view.quarantine = None;
                    if view.data.is_none() && room > 0 {
                        room -= 1;
                        self.adopt(&mut view, at);
                    }
                }
                Ok(Place::Nowhere) => {}
                Err(e) => {
                    whole = false;
                    view.quarantine = Some(e.clone());
                }
            }
        }
        whole
    }

    /// A created file has a data file now. One that is not opened here is opened when it is needed.
    fn adopt(&self, view: &mut View, at: &Path) {
        if let Ok(file) = open_for_writing(&*self.storage, at) {
            let claimed = file.try_claim().unwrap_or(false);
            let meta = file.meta();
            if let (true, Ok(meta)) = (claimed, meta) {
                view.base_size = meta.size;
                view.seen = Some(meta);
                view.data = Some(file);
            }
        }
    }
}

struct Staged {
    record: Record,
    files: Vec<Arc<FileShared>>,
    /// With `full_page`, the pages that the record has whole.
    whole_pages: Vec<(Arc<FileShared>, Vec<u64>)>,
}

/// What the requests of a group that were staged before say of each file.
#[derive(Default)]
struct Chain {
    /// The last of them that touches it.
    last: HashMap<u64, u64>,
    /// How many of its layers they took.
    layers: HashMap<u64, usize>,
}

/// The changes of a commit that failed were all on their way in another's, of which nobody knows.
fn perhaps(e: Error) -> Error {
    match e {
        Error::SyncFailed { source, .. } => Error::SyncFailed { outcome: Outcome::UnknownUntilReopened, source },
        other => other,
    }
}

fn attribute_error(path: &Path, e: std::io::Error) -> Error {
    if e.kind() == std::io::ErrorKind::Unsupported {
        return Error::Unsupported {
            path: path.to_owned(),
            detail: "this file system has no extended attributes, which Untorn needs to recognise its files; \
                     ext4, XFS, btrfs, and tmpfs since Linux 6.6 have them"
                .into(),
        };
    }
    Error::io("set the attribute of", path, e)
}

impl Inner {
    /// Commits asked for and not yet answered.
    pub(crate) fn has_waiting(&self) -> bool {
        let queue = lock(&self.queue);
        !queue.waiting.is_empty() && !queue.leading && !self.closed.load(SeqCst)
    }
}
