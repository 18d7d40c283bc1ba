//! The log of the program.

mod common;

use common::{program, text, url};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;
use untorn::Store;

fn commit(dir: &std::path::Path, contents: &[u8]) {
    let store = Store::open_or_create(dir).unwrap();
    let file = store.open_or_create_file("a").unwrap();
    file.write_all_at(contents, 0).and_then(|()| file.commit()).unwrap();
    store.close().unwrap();
}

/// Standard error of a run whose bucket goes away. Its first line, or all of it if no line is expected.
fn logged(arguments: &[&str], variable: Option<&str>, lines: usize) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (store, bucket) = (dir.path().join("store"), dir.path().join("bucket"));
    commit(&store, b"1");
    let mut command = program(&[arguments, &["ship", text(&store), &url(&bucket)]].concat());
    command.env_remove("UNTORN_LOG").env_remove("JOURNAL_STREAM").stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(value) = variable {
        command.env("UNTORN_LOG", value);
    }
    let mut child = command.spawn().unwrap();
    let mut started = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut started).unwrap();
    assert!(started.starts_with("ships to "), "{started}");
    fs::rename(&bucket, dir.path().join("away")).unwrap();
    File::create(&bucket).unwrap();
    commit(&store, b"2");
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    for _ in 0..lines {
        stderr.read_line(&mut said).unwrap();
    }
    if lines == 0 {
        sleep(Duration::from_secs(2));
    }
    child.kill().and_then(|()| child.wait()).unwrap();
    if lines == 0 {
        stderr.read_to_string(&mut said).unwrap();
    }
    said
}

#[test]
fn a_bucket_that_goes_away_is_logged_as_asked_for() {
    let line = "untorn-ship: warning: commits were not shipped: it is tried again; error: ";
    assert!(logged(&[], None, 1).starts_with(line));
    assert!(logged(&["-v"], Some("off"), 1).starts_with(line), "options come before the variable");
    assert_eq!(logged(&["-q"], None, 0), "");
    assert_eq!(logged(&[], Some("error"), 0), "");
    let event: serde_json::Value = serde_json::from_str(&logged(&["--log-format", "json"], None, 1)).unwrap();
    assert_eq!((&event["id"], &event["level"]), (&"untorn.ship.retried".into(), &"warn".into()));
    assert!(event["fields"]["error"].as_str().is_some_and(|error| error.contains("in the bucket")), "{event}");
}
