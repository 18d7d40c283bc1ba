//! Points of players in a heap, which keeps them across restarts: `scores HEAP`, then lines `NAME POINTS` on standard
//! input.

use std::io::{BufRead, stdin};
use untorn::heap::{Heap, HeapMap, HeapString, HeapVec, Storable};

#[derive(Storable)]
struct Player<'h> {
    points: i64,
    games: HeapVec<'h, i64>,
}

type Players<'h> = HeapMap<'h, HeapString<'h>, Player<'h>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let heap = Heap::open_or_create(std::env::args_os().nth(1).ok_or("scores HEAP")?)?;
    let root = heap.root_or("players", Players::new_in)?;
    // SAFETY: this thread alone uses the root, and not after the heap is closed.
    let players = unsafe { &mut *root.as_ptr() };
    let alloc = heap.allocator();
    for line in stdin().lock().lines() {
        let line = line?;
        let (name, points) = line.split_once(' ').ok_or("a line is NAME POINTS")?;
        let name = HeapString::from_str_in(name, alloc);
        let who = players.get_or_insert_with(name, || Player { points: 0, games: HeapVec::new_in(alloc) });
        let points: i64 = points.parse()?;
        who.games.push(points);
        who.points += points;
        let (points, games) = (who.points, who.games.len());
        heap.commit()?;
        println!("{points} points in {games} games");
    }
    Ok(())
}
