//! Serves a local directory as a bucket over standard input and output: the other side of [`super::ssh`].

use crate::bucket::wire::{Answer, GREETING, Request};
use crate::bucket::{Bucket, Failed};
use parking_lot::Mutex;
use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Requests that are worked on at the same time: their flushes go to the disk together.
const THREADS: usize = 8;

/// Serves until the input ends.
///
/// # Errors
/// The connection broke, or the other side sends something else than requests.
pub fn serve(bucket: Arc<dyn Bucket>, input: impl Read, output: impl Write + Send + 'static) -> io::Result<()> {
    let output = Arc::new(Mutex::new(output));
    {
        let mut output = output.lock();
        output.write_all(GREETING.as_bytes())?;
        output.flush()?;
    }
    // A client that sends more than can be written waits.
    let (sender, receiver) = sync_channel::<(u64, Request)>(THREADS);
    let receiver = Arc::new(Mutex::new(receiver));
    let work = |bucket: Arc<dyn Bucket>, receiver: Arc<Mutex<Receiver<(u64, Request)>>>| {
        let output = output.clone();
        move || {
            loop {
                let next = receiver.lock().recv();
                let Ok((number, request)) = next else { return Ok(()) };
                let answer = answer(&*bucket, request);
                answer.send(&mut *output.lock(), number)?;
            }
        }
    };
    let threads = (0..THREADS)
        .map(|_| std::thread::Builder::new().name("untorn-serve".into()).spawn(work(bucket.clone(), receiver.clone())));
    let threads = threads.collect::<io::Result<Vec<std::thread::JoinHandle<io::Result<()>>>>>()?;
    drop(receiver);
    let mut input = BufReader::new(input);
    let read = loop {
        match Request::receive(&mut input) {
            Ok(Some(request)) => {
                // All threads have ended when nobody takes the answers.
                if sender.send(request).is_err() {
                    break Err(io::ErrorKind::BrokenPipe.into());
                }
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    drop(sender);
    let written = threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())));
    read.and(written)
}

fn answer(bucket: &dyn Bucket, request: Request) -> Answer {
    let answer = match request {
        Request::Create(name, bytes) => bucket.create(&name, bytes).map(Answer::from),
        Request::Get(name, bytes_max) => {
            bucket.get(&name, bytes_max).map(|found| found.map_or(Answer::Nothing, Answer::Object))
        }
        Request::List(prefix, after) => {
            bucket.list(&prefix, Some(after.as_str()).filter(|after| !after.is_empty())).map(Answer::Names)
        }
        Request::Delete(name) => bucket.delete(&name).map(|()| Answer::Done),
    };
    answer.unwrap_or_else(|failed: Failed| Answer::of(failed))
}
