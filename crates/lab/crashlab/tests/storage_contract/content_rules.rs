//! Rules about contents: reading, writing, sizes, holes, direct files, the contents of a device, and a full disk.

use crate::fixture::{Difference, Fixture, contents, holds, refused, rules, same};
use libc::{EBADF, EFBIG, EINVAL, EISDIR, ENOSPC, EOPNOTSUPP};
use std::path::Path;
use untorn::__private::sync_point;
use untorn_os::{AlignedBuf, BLOCK_BYTES, LINE_BYTES, Open, read_full_at, read_full_past_cache_at, write_all_at};

rules! {
    reading_ends_at_the_end,
    writing_makes_the_file_longer,
    every_opening_sees_what_was_written,
    offsets_have_a_limit,
    files_have_a_largest_size,
    a_file_opened_for_reading_is_not_changed,
    a_file_grows_by_zeros,
    zeros_keep_the_length,
    allocating_keeps_contents,
    sharing_blocks_is_copying,
    direct_files,
    direct_files_at_their_end,
    direct_and_buffered_files_agree,
    reading_past_the_cache,
    forgetting_the_cache,
    a_full_disk,
    stored_lines,
    counters,
}

fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::default();
    buf.extend(bytes);
    buf
}

fn reading_ends_at_the_end(fixture: &Fixture) {
    let file = fixture.file("f", b"0123456789");
    let mut buf = [0xee; 20];
    same(read_full_at(&*file, &mut buf, 0).unwrap(), 10);
    same(&buf[..11], b"0123456789\xee");
    same(file.read_at(&mut buf, 7).unwrap(), 3);
    same(&buf[..4], b"7893");
    for offset in [10, 11, 4096, 1 << 40] {
        same(file.read_at(&mut buf, offset).unwrap(), 0);
    }
    same(file.read_at(&mut [], 3).unwrap(), 0);
    same(file.read_at(&mut buf[..4], 2).unwrap(), 4);
    same(&buf[..4], b"2345");
}

fn writing_makes_the_file_longer(fixture: &Fixture) {
    let file = fixture.open("f", Open::create(0o600));
    write_all_at(&*file, b"tail", 9000).unwrap();
    same(file.meta().unwrap().size, 9004);
    let all = contents(&*file);
    holds(all[..9000].iter().all(|&b| b == 0) && &all[9000..] == b"tail");
    same(file.write_at(b"", 20_000).unwrap(), 0);
    same(file.meta().unwrap().size, 9004);
    let pattern: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    write_all_at(&*file, &pattern, 5).unwrap();
    same(file.meta().unwrap().size, 100_005);
    holds(contents(&*file)[5..] == pattern);
    write_all_at(&*file, b"middle", 50_000).unwrap();
    same(file.meta().unwrap().size, 100_005);
    same(&contents(&*file)[50_000..50_006], b"middle");
}

fn every_opening_sees_what_was_written(fixture: &Fixture) {
    let writer = fixture.file("f", b"first");
    let readers = [fixture.open("f", Open::READ), fixture.another_storage().open(Path::new("f"), Open::WRITE).unwrap()];
    write_all_at(&*writer, b"second", 0).unwrap();
    readers.iter().for_each(|reader| same(contents(&**reader), b"second".to_vec()));
    writer.set_len(3).unwrap();
    readers.iter().for_each(|reader| same(contents(&**reader), b"sec".to_vec()));
    write_all_at(&*readers[1], b"S", 0).unwrap();
    same(contents(&*writer), b"Sec".to_vec());
}

fn offsets_have_a_limit(fixture: &Fixture) {
    let file = fixture.file("f", b"contents");
    let beyond = 1 << 63;
    refused(file.read_at(&mut [0; 1], beyond), &[EINVAL]);
    refused(file.write_at(&[0; 1], beyond), &[EINVAL]);
    refused(file.write_at(&[0; 2], beyond - 1), &[EINVAL, EFBIG]);
    refused(file.set_len(beyond), &[EINVAL]);
    refused(file.set_len(u64::MAX), &[EINVAL]);
    refused(file.allocate(beyond, 1), &[EINVAL]);
    refused(file.allocate(beyond - 1, 2), &[EINVAL, EFBIG]);
    refused(file.allocate(0, 0), &[EINVAL]);
    same(contents(&*file), b"contents".to_vec());
}

fn files_have_a_largest_size(fixture: &Fixture) {
    let file = fixture.file("f", b"contents");
    let most = file.size_max().unwrap();
    holds(most > u32::MAX.into() && i64::try_from(most).is_ok());
    refused(file.set_len(most + 1), &[EINVAL, EFBIG]);
    refused(file.write_at(b"x", most), &[EINVAL, EFBIG]);
    same(file.meta().unwrap().size, 8);
    file.set_len(most).unwrap();
    same(file.meta().unwrap().size, most);
    file.zero(most - 10, 10).unwrap();
    file.set_len(3).unwrap();
    same(contents(&*file), b"con".to_vec());
    holds(fixture.storage.file_size_limit() > most);
}

fn a_file_opened_for_reading_is_not_changed(fixture: &Fixture) {
    drop(fixture.file("f", b"contents"));
    let file = fixture.open("f", Open::READ);
    refused(file.write_at(b"x", 0), &[EBADF]);
    refused(file.set_len(1), &[EINVAL]);
    refused(file.allocate(0, 100), &[EBADF]);
    refused(file.zero(0, 4), &[EBADF]);
    same(contents(&*file), b"contents".to_vec());
    // A sync needs no right to write.
    file.sync_data(sync_point::CHECKPOINT_DATA).unwrap();
    file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
}

fn a_file_grows_by_zeros(fixture: &Fixture) {
    let file = fixture.file("f", &[7; 10_000]);
    file.set_len(20_000).unwrap();
    let all = contents(&*file);
    holds(all.len() == 20_000 && all[..10_000] == [7; 10_000] && all[10_000..] == [0; 10_000]);
    file.set_len(100).unwrap();
    same(contents(&*file), vec![7; 100]);
    file.set_len(9000).unwrap();
    let all = contents(&*file);
    holds(all[..100] == [7; 100] && all[100..].iter().all(|&b| b == 0));
    // Old bytes do not come back when a write fills the gap.
    file.set_len(0).unwrap();
    write_all_at(&*file, b"x", 5000).unwrap();
    same(contents(&*file).iter().filter(|&&b| b != 0).count(), 1);
    file.set_len(5001).unwrap();
    same(file.meta().unwrap().size, 5001);
    // A hole costs nothing.
    file.set_len(1 << 40).unwrap();
    same(file.meta().unwrap().size, 1 << 40);
    let mut buf = [0xee; 10];
    same(file.read_at(&mut buf, (1 << 40) - 4).unwrap(), 4);
    same(&buf[..5], b"\0\0\0\0\xee");
}

fn zeros_keep_the_length(fixture: &Fixture) {
    let file = fixture.file("f", &[7; 20_000]);
    let is = |from: usize, to: usize| {
        let all = contents(&*file);
        holds(all.len() == 20_000);
        for (at, &byte) in all.iter().enumerate() {
            assert!((byte == 0) == (from <= at && at < to), "byte {at} is {byte} with {from}..{to} zeroed");
        }
    };
    file.zero(0, 0).unwrap();
    is(0, 0);
    file.zero(5000, 3).unwrap();
    is(5000, 5003);
    file.zero(4096, 4096).unwrap();
    is(4096, 8192);
    file.zero(4000, 10_000).unwrap();
    is(4000, 14_000);
    file.zero(14_000, 6000).unwrap();
    is(4000, 20_000);
    file.zero(0, 20_000).unwrap();
    is(0, 20_000);
    write_all_at(&*file, &[7; 4000], 0).unwrap();
    is(4000, 20_000);
}

fn allocating_keeps_contents(fixture: &Fixture) {
    let file = fixture.file("f", &[7; 5000]);
    file.allocate(0, 4000).unwrap();
    same(contents(&*file), vec![7; 5000]);
    file.allocate(4000, 20_000).unwrap();
    same(file.meta().unwrap().size, 24_000);
    let all = contents(&*file);
    holds(all[..5000] == [7; 5000] && all[5000..].iter().all(|&b| b == 0));
    file.allocate(100_000, 50).unwrap();
    same(file.meta().unwrap().size, 100_050);
    holds(contents(&*file)[5000..].iter().all(|&b| b == 0));
    write_all_at(&*file, b"x", 50_000).unwrap();
    same(contents(&*file)[50_000], b'x');
    file.set_len(10).unwrap();
    same(contents(&*file), vec![7; 10]);
}

fn sharing_blocks_is_copying(fixture: &Fixture) {
    const BLOCK: u64 = BLOCK_BYTES as u64;
    let pattern: Vec<u8> = (0..5 * BLOCK_BYTES + 100).map(|n| (n / 7) as u8 | 1).collect();
    let from = fixture.file("from", &pattern);
    from.sync_data(sync_point::SPILL_CONTENTS).unwrap();
    let file = fixture.file("f", &[2; 3 * BLOCK_BYTES]);
    let mut expected = vec![2; 3 * BLOCK_BYTES];
    match file.clone_range(&*from, BLOCK, 2 * BLOCK, 3 * BLOCK) {
        Ok(()) => {
            expected.resize(5 * BLOCK_BYTES, 0);
            expected[2 * BLOCK_BYTES..].copy_from_slice(&pattern[BLOCK_BYTES..4 * BLOCK_BYTES]);
        }
        Err(e) => same(e.raw_os_error(), Some(EOPNOTSUPP)),
    }
    let shares = expected.len() > 3 * BLOCK_BYTES;
    same(contents(&*file), expected.clone());
    file.clone_range(&*from, 0, 0, 0).or_else(|e| if shares { Err(e) } else { Ok(()) }).unwrap();
    for (from_offset, offset, len) in
        [(1, 0, BLOCK), (0, 1, BLOCK), (0, 0, 100), (5 * BLOCK, 0, BLOCK), (8 * BLOCK, 0, BLOCK)]
    {
        refused(file.clone_range(&*from, from_offset, offset, len), if shares { &[EINVAL] } else { &[EOPNOTSUPP] });
    }
    // Within a file, ranges must not overlap.
    refused(file.clone_range(&*file, 0, BLOCK, 2 * BLOCK), if shares { &[EINVAL] } else { &[EOPNOTSUPP] });
    if shares {
        file.clone_range(&*file, 0, BLOCK, BLOCK).unwrap();
        expected.copy_within(..BLOCK_BYTES, BLOCK_BYTES);
        same(contents(&*file), expected.clone());
    }
    let readable = fixture.open("f", Open::READ);
    refused(readable.clone_range(&*from, 0, 0, BLOCK), if shares { &[EBADF] } else { &[EBADF, EOPNOTSUPP] });
    // Neither file changes with the other one, and the contents outlive their source file.
    write_all_at(&*file, b"mine", 3 * BLOCK).unwrap();
    if shares {
        expected[3 * BLOCK_BYTES..3 * BLOCK_BYTES + 4].copy_from_slice(b"mine");
    } else {
        expected.resize(3 * BLOCK_BYTES + 4, 0);
        expected[3 * BLOCK_BYTES..].copy_from_slice(b"mine");
    }
    same(contents(&*from), pattern);
    write_all_at(&*from, &[9; 2 * BLOCK_BYTES], 2 * BLOCK).unwrap();
    same(contents(&*file), expected.clone());
    fixture.storage.unlink(Path::new("from")).unwrap();
    drop(from);
    file.sync_data(sync_point::CHECKPOINT_DATA).unwrap();
    let mut device = AlignedBuf::zeroed(6 * BLOCK_BYTES);
    let n = read_full_past_cache_at(&*file, &mut device, 0).unwrap();
    holds(n >= expected.len() && device[..expected.len()] == expected[..]);
}

fn direct_files(fixture: &Fixture) {
    let file = fixture.open("f", Open::create(0o600).direct());
    same(fixture.names(""), vec!["f".to_owned()]);
    let blocks = aligned(&[5; 3 * BLOCK_BYTES]);
    write_all_at(&*file, &blocks, 0).unwrap();
    write_all_at(&*file, &blocks, 5 * BLOCK_BYTES as u64).unwrap();
    same(file.meta().unwrap().size, 8 * BLOCK_BYTES as u64);
    let mut read = AlignedBuf::zeroed(10 * BLOCK_BYTES);
    same(read_full_at(&*file, &mut read, 0).unwrap(), 8 * BLOCK_BYTES);
    let hole = 3 * BLOCK_BYTES..5 * BLOCK_BYTES;
    holds(read[..8 * BLOCK_BYTES].iter().enumerate().all(|(at, &b)| b == if hole.contains(&at) { 0 } else { 5 }));
    same(file.read_at(&mut read, 8 * BLOCK_BYTES as u64).unwrap(), 0);
    holds(!fixture.open("f", Open::WRITE).is_direct());
    holds(fixture.open("f", Open::WRITE.direct()).is_direct() == file.is_direct());
    // Unaligned reads are refused, or work as for any other file: callers cannot rely on either.
    let mut odd = AlignedBuf::zeroed(2 * BLOCK_BYTES);
    for (from, to, offset) in [(1, BLOCK_BYTES + 1, 0), (0, BLOCK_BYTES, 1), (0, 100, 0)] {
        match file.read_at(&mut odd[from..to], offset) {
            Ok(n) => holds(n == to - from && odd[from..to].iter().all(|&b| b == 5)),
            Err(e) => same((e.raw_os_error(), file.is_direct()), (Some(EINVAL), true)),
        }
    }
}

/// Lines are stored to as bytes are written, where files have them.
fn stored_lines(fixture: &Fixture) {
    let file = fixture.file("f", &[1; 2 * BLOCK_BYTES]);
    let Ok(lines) = file.lines(BLOCK_BYTES as u64) else { return };
    for len in [0, 100, 3 * BLOCK_BYTES as u64] {
        refused(file.lines(len).map(drop), &[EINVAL]);
    }
    lines.store(&[2; 2 * LINE_BYTES], LINE_BYTES as u64).unwrap();
    for (bytes, at) in [(LINE_BYTES, 8), (8, 0), (LINE_BYTES, BLOCK_BYTES as u64), (BLOCK_BYTES, 64)] {
        refused(lines.store(&vec![3; bytes], at), &[EINVAL]);
    }
    refused(lines.copy(&[3; 8], BLOCK_BYTES as u64 - 7), &[EINVAL]);
    lines.copy(&[2; 9], 3 * LINE_BYTES as u64 - 9).unwrap();
    lines.fence(sync_point::COMMIT).unwrap();
    let expected = |from: usize, to: usize| (0..2 * BLOCK_BYTES).map(move |at| 1 + u8::from(from <= at && at < to));
    same(contents(&*file), expected(LINE_BYTES, 3 * LINE_BYTES).collect());
    let direct = fixture.open("f", Open::WRITE.direct());
    let mut read = AlignedBuf::zeroed(2 * BLOCK_BYTES);
    same(read_full_at(&*direct, &mut read, 0).unwrap(), 2 * BLOCK_BYTES);
    same(read.to_vec(), contents(&*file));
    drop((file, direct));
    // The lines outlive the opening, and the name.
    let other = fixture.open("f", Open::READ);
    fixture.storage.unlink(Path::new("f")).unwrap();
    lines.store(&[2; LINE_BYTES], 0).unwrap();
    same(contents(&*other), expected(0, 3 * LINE_BYTES).collect());
}

fn direct_files_at_their_end(fixture: &Fixture) {
    drop(fixture.file("f", &[6; 5000]));
    let file = fixture.open("f", Open::WRITE.direct());
    let mut read = AlignedBuf::zeroed(4 * BLOCK_BYTES);
    same(read_full_at(&*file, &mut read, 0).unwrap(), 5000);
    holds(read[..5000].iter().all(|&b| b == 6));
    same(read_full_at(&*file, &mut read, BLOCK_BYTES as u64).unwrap(), 5000 - BLOCK_BYTES);
    same(file.read_at(&mut read, 2 * BLOCK_BYTES as u64).unwrap(), 0);
    write_all_at(&*file, &aligned(&[7; BLOCK_BYTES]), BLOCK_BYTES as u64).unwrap();
    same(file.meta().unwrap().size, 2 * BLOCK_BYTES as u64);
    file.set_len(4097).unwrap();
    same(read_full_at(&*file, &mut read, 0).unwrap(), 4097);
    same((read[4095], read[4096]), (6, 7));
}

fn direct_and_buffered_files_agree(fixture: &Fixture) {
    let buffered = fixture.file("f", &[1; 3 * BLOCK_BYTES]);
    let direct = fixture.open("f", Open::WRITE.direct());
    let mut read = AlignedBuf::zeroed(3 * BLOCK_BYTES);
    for round in 2..20u8 {
        let at = u64::from(round % 3) * BLOCK_BYTES as u64;
        match round % 2 {
            0 => write_all_at(&*direct, &aligned(&[round; BLOCK_BYTES]), at).unwrap(),
            _ => write_all_at(&*buffered, &[round; 100], at + 50).unwrap(),
        }
        same(read_full_at(&*direct, &mut read, 0).unwrap(), 3 * BLOCK_BYTES);
        holds(contents(&*buffered) == read[..]);
        holds(read[at as usize + 50..at as usize + 150].iter().all(|&b| b == round));
    }
}

fn reading_past_the_cache(fixture: &Fixture) {
    fixture.directory("d");
    for how in [Open::create(0o600), Open::create(0o600).direct()] {
        let file = fixture.open("f", how);
        let blocks = aligned(&[9; 2 * BLOCK_BYTES]);
        write_all_at(&*file, &blocks, 0).unwrap();
        file.set_len(5000).unwrap();
        file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
        let mut read = AlignedBuf::zeroed(4 * BLOCK_BYTES);
        same(read_full_past_cache_at(&*file, &mut read, 0).unwrap(), 5000);
        holds(read[..5000].iter().all(|&b| b == 9));
        same(read_full_past_cache_at(&*file, &mut read, BLOCK_BYTES as u64).unwrap(), 5000 - BLOCK_BYTES);
        same(file.read_past_cache_at(&mut read, 2 * BLOCK_BYTES as u64).unwrap(), 0);
        same(read_full_at(&*file, &mut read, 0).unwrap(), 5000);
        fixture.storage.unlink(Path::new("f")).unwrap();
    }
    let mut read = AlignedBuf::zeroed(BLOCK_BYTES);
    refused(fixture.open("d", Open::READ).read_past_cache_at(&mut read, 0), &[EISDIR]);
}

fn forgetting_the_cache(fixture: &Fixture) {
    let file = fixture.file("f", &[3; 10_000]);
    file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
    file.forget_cached().unwrap();
    same(contents(&*file), vec![3; 10_000]);
    // Unflushed bytes are not dropped.
    write_all_at(&*file, &[4; 5000], 7000).unwrap();
    file.forget_cached().unwrap();
    let all = contents(&*file);
    holds(all.len() == 12_000 && all[..7000] == [3; 7000] && all[7000..] == [4; 5000]);
}

fn a_full_disk(fixture: &Fixture) {
    const CHUNK: usize = 256 << 10;
    fixture.with_room_for(8 << 20, |fixture| {
        let file = fixture.open("f", Open::create(0o600));
        let available = fixture.storage.space().unwrap().available_bytes;
        let mut size = 0;
        let refusal = loop {
            match file.write_at(&[8; CHUNK], size) {
                Ok(0) => panic!("a write of nothing"),
                Ok(n) => size += n as u64,
                Err(e) => break Err::<(), _>(e),
            }
            holds(size < 1 << 30);
        };
        refused(refusal, &[ENOSPC]);
        holds(size > 4 << 20 && size <= available + available / 4);
        same(file.meta().unwrap().size, size);
        holds(contents(&*file).iter().all(|&b| b == 8));
        refused(file.allocate(size, 512 << 20), &[ENOSPC]);
        let larger = file.meta().unwrap().size;
        holds(larger == size || larger > size && fixture.has(Difference::FailedAllocationMayExtend));
        holds(contents(&*file)[size as usize..].iter().all(|&b| b == 0));
        // Names can still be changed, and removing makes room.
        fixture.storage.rename(Path::new("f"), Path::new("g"), false).unwrap();
        file.set_len(0).unwrap();
        file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
        fixture.storage.sync_file_system(sync_point::CHECKPOINT_MANY).unwrap();
        write_all_at(&*file, &[9; CHUNK], 0).unwrap();
        same(contents(&*file), vec![9; CHUNK]);
    });
}

fn counters(fixture: &Fixture) {
    let storage = fixture.another_storage();
    same(storage.counters(), untorn_os::Counters::default());
    let file = storage.open(Path::new("f"), Open::create(0o600)).unwrap();
    same(storage.counters(), untorn_os::Counters::default());
    same(file.write_at(&[1; 100], 0).unwrap(), 100);
    same(file.write_at(&[1; 50], 25).unwrap(), 50);
    refused(storage.open(Path::new("f"), Open::READ).unwrap().write_at(&[1], 0), &[EBADF]);
    let now = storage.counters();
    same((now.writes, now.bytes_written, now.syncs), (2, 150, 0));
    file.sync_data(sync_point::CHECKPOINT_DATA).unwrap();
    file.sync_all(sync_point::CHECKPOINT_DATA).unwrap();
    storage.sync_dir(Path::new(""), sync_point::CHECKPOINT_NAMES).unwrap();
    storage.sync_file_system(sync_point::CHECKPOINT_MANY).unwrap();
    let now = storage.counters();
    same((now.writes, now.bytes_written, now.syncs), (2, 150, 4));
    // Each storage has its own counters, which include its files.
    let other = fixture.another_storage();
    let same_file = other.open(Path::new("f"), Open::WRITE).unwrap();
    same(same_file.write_at(&[1; 7], 0).unwrap(), 7);
    same_file.sync_data(sync_point::CHECKPOINT_DATA).unwrap();
    same(storage.counters(), now);
    let its = other.counters();
    same((its.writes, its.bytes_written, its.syncs), (1, 7, 1));
}
