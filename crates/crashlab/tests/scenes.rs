//! Damage, and a second thread: what no program of the enumeration shows.

use untorn_crashlab::scenes::SCENES;

#[test]
fn every_scene_ends_well() {
    for (name, play) in SCENES {
        println!("{name}");
        play().unwrap_or_else(|what| panic!("{name}: {what}"));
    }
}
