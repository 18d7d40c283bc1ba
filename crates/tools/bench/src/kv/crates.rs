//! Stores that are Rust crates: redb and fjall, each told to flush at every commit.

use super::kv_store::{Entry, Key, Scan, Store, taste};
use anyhow::Result;
use redb::{ReadableTable, TableDefinition};
use std::path::Path;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("kv");

pub struct RedbStore {
    db: redb::Database,
}

impl RedbStore {
    pub fn open(dir: &Path) -> Result<RedbStore> {
        let store = RedbStore { db: redb::Database::create(dir.join("db"))? };
        store.transact(|_| Ok(()))?;
        Ok(store)
    }

    fn transact(&self, work: impl FnOnce(&mut redb::Table<'_, &[u8], &[u8]>) -> Result<()>) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(redb::Durability::Immediate);
        work(&mut transaction.open_table(TABLE)?)?;
        Ok(transaction.commit()?)
    }
}

impl Store for RedbStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        self.transact(|table| {
            entries.iter().try_for_each(|e| table.insert(e.key.as_slice(), e.value).map(|_| ()))?;
            Ok(())
        })
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.transact(|table| {
            table.remove(key.as_slice())?;
            Ok(())
        })
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let table = self.db.begin_read()?.open_table(TABLE)?;
        let mut sum = 0;
        for key in keys {
            sum += table.get(key.as_slice())?.map_or(0, |value| taste(value.value()));
        }
        Ok(sum)
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        for entry in self.db.begin_read()?.open_table(TABLE)?.iter()? {
            scan.add(entry?.1.value());
        }
        Ok(scan)
    }
}

pub struct FjallStore {
    keyspace: fjall::Keyspace,
    partition: fjall::PartitionHandle,
}

impl FjallStore {
    pub fn open(dir: &Path) -> Result<FjallStore> {
        let keyspace = fjall::Config::new(dir.join("db")).open()?;
        let partition = keyspace.open_partition("kv", fjall::PartitionCreateOptions::default())?;
        Ok(FjallStore { keyspace, partition })
    }

    fn persist(&self) -> Result<()> {
        Ok(self.keyspace.persist(fjall::PersistMode::SyncAll)?)
    }
}

impl Store for FjallStore {
    fn put(&mut self, entries: &[Entry<'_>]) -> Result<()> {
        if let [entry] = entries {
            self.partition.insert(entry.key, entry.value)?;
            return self.persist();
        }
        let mut batch = self.keyspace.batch().durability(Some(fjall::PersistMode::SyncAll));
        entries.iter().for_each(|entry| batch.insert(&self.partition, entry.key, entry.value));
        Ok(batch.commit()?)
    }

    fn delete(&mut self, key: &Key) -> Result<()> {
        self.partition.remove(key)?;
        self.persist()
    }

    fn read(&mut self, keys: &[Key]) -> Result<u64> {
        let mut sum = 0;
        for key in keys {
            sum += self.partition.get(key)?.map_or(0, |value| taste(&value));
        }
        Ok(sum)
    }

    fn scan(&mut self) -> Result<Scan> {
        let mut scan = Scan::default();
        for entry in self.partition.iter() {
            scan.add(&entry?.1);
        }
        Ok(scan)
    }
}
