//! The file in which a following directory says where it stands. It changes in the transactions that change the files.

use crate::error::{Error, Result};
use crate::interface::{EpochStart, Point, State};
use crate::object::names::hex;
use crate::store::paths::REPLICA;
use serde_json::{Value, json};

/// The text of the file.
pub fn encode(state: &State) -> String {
    let epochs: Vec<Value> = state.epochs.iter().map(|start| json!([start.epoch, start.first_lsn])).collect();
    let text = json!({
        "version": 1,
        "store": hex(&state.store),
        "generation": state.generation,
        "epoch": state.point.epoch,
        "lsn": state.point.lsn,
        "hash": hex(&state.hash),
        "time_ns": state.time,
        "epochs": epochs,
    });
    format!("{text}\n")
}

/// Reads the text of the file.
///
/// # Errors
/// It is not of this version, or damaged.
pub fn decode(text: &[u8]) -> Result<State> {
    let value: Value = serde_json::from_slice(text).unwrap_or_default();
    let damaged =
        || Error::store(format!("the file {REPLICA} is not one of this version: follow into a new directory"));
    state_of(&value).filter(|_| value["version"] == 1).ok_or_else(damaged)
}

fn state_of(value: &Value) -> Option<State> {
    let epochs = value["epochs"]
        .as_array()?
        .iter()
        .map(|start| Some(EpochStart { epoch: start.get(0)?.as_u64()?, first_lsn: start.get(1)?.as_u64()? }));
    Some(State {
        store: bytes(value["store"].as_str()?)?,
        generation: value["generation"].as_u64()?,
        point: Point { epoch: value["epoch"].as_u64()?, lsn: value["lsn"].as_u64()? },
        hash: bytes(value["hash"].as_str()?)?,
        time: value["time_ns"].as_u64()?,
        epochs: epochs.collect::<Option<_>>()?,
    })
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back() {
        let state = State {
            store: [1; 16],
            generation: 3,
            point: Point { epoch: u64::MAX, lsn: 5 },
            hash: [200; 32],
            time: 1_800_000_000_000_000_000,
            epochs: vec![EpochStart { epoch: 9, first_lsn: 1 }, EpochStart { epoch: u64::MAX, first_lsn: 4 }],
        };
        assert_eq!(decode(encode(&state).as_bytes()).unwrap(), state);
        for bad in ["", "{}", "[1]", &encode(&state).replace("\"version\":1", "\"version\":2")] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
