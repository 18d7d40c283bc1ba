//! Several files and names, all or nothing: `transfer DIR` moves 30 coins from one account to another, and keeps the
//! receipt under a new name; `transfer DIR crash` ends in the middle.

use untorn::{File, Store};

fn coins(file: &File) -> untorn::Result<i64> {
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(0))
}

fn set(file: &File, coins: i64) -> untorn::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{coins}\n").as_bytes(), 0)
}

fn main() -> untorn::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let store = Store::open_or_create(arguments.next().unwrap_or("bank".into()))?;
    let (ann, bob) = (store.open_or_create_file("ann")?, store.open_or_create_file("bob")?);
    if ann.len()? == 0 {
        set(&ann, 1000)?;
        set(&bob, 0)?;
        store.syncv(&[&ann, &bob])?;
    }
    let receipts = store.list("")?.iter().filter(|name| name.to_string_lossy().starts_with("receipt")).count();
    println!("before: {} + {}, {receipts} receipts", coins(&ann)?, coins(&bob)?);

    let mut txn = store.begin();
    txn.add(&ann)?;
    txn.add(&bob)?;
    set(&ann, coins(&ann)? - 30)?;
    if arguments.next().is_some() {
        println!("crash: {} + {} in this process", coins(&ann)?, coins(&bob)?);
        std::process::abort();
    }
    set(&bob, coins(&bob)? + 30)?;
    txn.create(format!("receipt-{}", receipts + 1), 0o644)?.write_all_at(b"30 coins from ann to bob\n", 0)?;
    txn.commit()?;
    println!("after: {} + {}, {} receipts", coins(&ann)?, coins(&bob)?, receipts + 1);
    store.close()
}
