//! Scenarios that no enumerated program has: damage, and a second thread.

use untorn_crashlab::scenarios::SCENARIOS;

#[test]
fn every_scene_ends_well() {
    // `UNTORN_SCENARIO` names some of them.
    let only = std::env::var("UNTORN_SCENARIO").unwrap_or_default();
    let failed = |(name, play): &(&str, fn() -> Result<(), String>)| {
        println!("{name}");
        play().err().map(|wrong| format!("{name}: {wrong}"))
    };
    let failures: Vec<String> =
        SCENARIOS.iter().filter(|scenario| scenario.0.contains(&only)).filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
