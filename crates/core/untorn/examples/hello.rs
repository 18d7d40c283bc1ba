//! Two files that always match: after a crash at any moment both hold the old text, or both the new.
//! `cargo run --example hello -- DIRECTORY`

fn main() -> untorn::Result<()> {
    let store = untorn::Store::open_or_create(std::env::args().nth(1).unwrap_or(".".into()))?;
    let (a, b) = (store.open_or_create_file("account-a")?, store.open_or_create_file("account-b")?);
    a.write_all_at(b"70 coins\n", 0)?;
    b.write_all_at(b"30 coins\n", 0)?;
    store.syncv(&[&a, &b])?;
    store.close()
}
