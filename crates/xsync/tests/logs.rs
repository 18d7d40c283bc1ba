//! The options of the log.

use std::process::Command;

#[test]
fn the_options_of_the_log_are_understood() {
    let said = |arguments: &[&str], variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_untorn-xsync"));
        let output = command.args(arguments).env("UNTORN_LOG", variable).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for arguments in
        [&["-v", "--status"][..], &["--log-format", "json", "--status", "-qq"], &["-v", "completions", "bash"]]
    {
        assert_eq!(said(arguments, "info"), "", "{arguments:?}");
    }
    assert!(said(&["--status"], "loud").starts_with("untorn-xsync: UNTORN_LOG=loud is no level"));
    assert_eq!(said(&["--status", "-v"], "loud"), "", "options come before the variable");
}
