//! Damage, and a second thread: what no program of the enumeration shows.

use untorn_crashlab::scenarios::SCENARIOS;

#[test]
fn every_scene_ends_well() {
    for (name, play) in SCENARIOS {
        println!("{name}");
        play().unwrap_or_else(|what| panic!("{name}: {what}"));
    }
}
