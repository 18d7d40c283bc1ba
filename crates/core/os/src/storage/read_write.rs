//! Reads and writes that continue after short calls and interruptions.

use crate::memory::buffer::BLOCK_BYTES;
use crate::storage::File;
use std::io::{self, ErrorKind};

/// Tries of a call that fails with `EINTR` or `EAGAIN`.
const TRIES: u32 = 1000;

fn try_again(e: &io::Error, left: &mut u32) -> bool {
    let again = matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) && *left > 0;
    *left = left.saturating_sub(1);
    again
}

/// Writes all of `buf`, and continues after short writes and interruptions, if the descriptor still belongs to the file
/// ([`File::check_own`]).
pub fn write_all_at(file: &dyn File, buf: &[u8], offset: u64) -> io::Result<()> {
    file.check_own()?;
    write_more_at(file, buf, offset)
}

/// Writes like [`write_all_at`], right after [`Storage::file_size_limit`](crate::Storage::file_size_limit) allowed the
/// end of the write.
pub fn write_all_allowed_at(file: &dyn File, buf: &[u8], offset: u64) -> io::Result<()> {
    file.check_own()?;
    match file.write_allowed_at(buf, offset) {
        Ok(n) if n == buf.len() => Ok(()),
        Ok(n) if !file.is_direct() => write_more_at(file, &buf[n..], offset + n as u64),
        // Written again, from the beginning.
        _ => write_more_at(file, buf, offset),
    }
}

/// Writes like [`write_all_at`], if that check was made for the file shortly before.
pub fn write_more_at(file: &dyn File, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    let mut left = TRIES;
    while !buf.is_empty() {
        match file.write_at(buf, offset) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                // A direct write may end short at any byte; only whole blocks count as written.
                let n = if file.is_direct() && n < buf.len() { n - n % BLOCK_BYTES } else { n };
                if n == 0 && !try_again(&ErrorKind::Interrupted.into(), &mut left) {
                    return Err(ErrorKind::WriteZero.into());
                }
                buf = &buf[n..];
                offset += n as u64;
            }
            Err(e) if try_again(&e, &mut left) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn read_loop(
    buf: &mut [u8],
    offset: u64,
    whole_blocks: bool,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut left = TRIES;
    let mut done = 0;
    let mut tail = None;
    while done < buf.len() {
        match read(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) if whole_blocks && n % BLOCK_BYTES != 0 => {
                // Either the file ends inside a block, or the read was short: a second read shows which.
                done += n - n % BLOCK_BYTES;
                let now = Some((done, n % BLOCK_BYTES));
                if std::mem::replace(&mut tail, now) == now {
                    done += n % BLOCK_BYTES;
                    break;
                }
            }
            Ok(n) => done += n,
            Err(e) if try_again(&e, &mut left) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads until `buf` is full or the file ends; returns the bytes read.
pub fn read_full_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    read_loop(buf, offset, file.is_direct(), |b, o| file.read_at(b, o))
}

/// Reads past the page cache until `buf` is full or the file ends; returns the bytes read.
pub fn read_full_past_cache_at(file: &dyn File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    read_loop(buf, offset, true, |b, o| file.read_past_cache_at(b, o))
}
