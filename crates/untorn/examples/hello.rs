//! Two files that always match: after a crash at any moment both hold the old text, or both the new.
//! `cargo run --example hello -- DIRECTORY`

fn main() -> untorn::Result<()> {
    let store = untorn::Store::open(std::env::args().nth(1).unwrap_or(".".into()))?;
    let (a, b) = (store.create("account-a")?, store.create("account-b")?);
    a.write_at(b"70 coins\n", 0)?;
    b.write_at(b"30 coins\n", 0)?;
    store.syncv(&[&a, &b])?;
    store.close()
}
