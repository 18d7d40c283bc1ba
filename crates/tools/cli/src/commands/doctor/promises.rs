//! Combines the findings into promises.

use super::faces::{Face, Faces};
use super::finding::{FAILURES, Failure, Finding, Verdict};
use serde::Serialize;
use std::path::{Path, PathBuf};
use untorn_os::FileSystemInfo;
use untorn_terminal::table::{pairs, table};

/// The complete result of `doctor`.
#[derive(Debug, Serialize)]
pub struct Report {
    pub path: PathBuf,
    /// Whether a store is possible here.
    pub usable: bool,
    pub file_system: String,
    pub mount_point: String,
    pub promises: Vec<Promise>,
    pub findings: Vec<Finding>,
    /// Ways to use Untorn here.
    #[serde(flatten)]
    pub faces: Faces,
    /// The store that exists here, in the format of `status --json`.
    pub store: Option<serde_json::Value>,
}

/// The promise for one failure, in both failure classes.
#[derive(Debug, Serialize)]
pub struct Promise {
    pub failure: Failure,
    pub class_process: Verdict,
    pub class_power: Verdict,
    /// The reasons why it is not better.
    pub because: Vec<String>,
}

impl Promise {
    fn of(failure: Failure, findings: &[Finding]) -> Promise {
        let mut class_power = findings.iter().map(|f| f.verdict(failure)).min().unwrap_or(Verdict::Kept);
        let mut class_process = class_power;
        let mut because = Vec::new();
        for f in findings.iter().filter(|f| f.verdict(failure) < Verdict::Kept) {
            because.push(format!("{} {}: {}", f.topic, f.found, f.why.as_deref().unwrap_or_default()));
        }
        match failure {
            Failure::ProcessKilled => {}
            Failure::KernelCrash | Failure::PowerCut => {
                class_process = Verdict::NotKept;
                because
                    .push("class process flushes nothing; afterwards the store says that its state is unknown".into());
            }
            Failure::DiskDamage => {
                (class_process, class_power) = (Verdict::NotKept, Verdict::NotKept);
                because.push("damage to the journal is found and reported; damage to data files is not".into());
            }
        }
        Promise { failure, class_process, class_power, because }
    }

    fn name(&self) -> &'static str {
        match self.failure {
            Failure::ProcessKilled => "the process is killed",
            Failure::KernelCrash => "the kernel crashes",
            Failure::PowerCut => "the power is cut",
            Failure::DiskDamage => "the disk damages stored data",
        }
    }
}

impl Report {
    pub fn new(
        path: &Path,
        info: FileSystemInfo,
        findings: Vec<Finding>,
        faces: Faces,
        store: Option<serde_json::Value>,
    ) -> Report {
        Report {
            path: path.to_owned(),
            usable: !findings.iter().any(|f| f.rules_out),
            file_system: info.kind,
            mount_point: info.mount_point,
            promises: FAILURES.iter().map(|&f| Promise::of(f, &findings)).collect(),
            findings,
            faces,
            store,
        }
    }

    /// The text for people: the promises, the reasons, the facts.
    pub fn text(&self) -> String {
        let mut text = format!("{}, on {} mounted at {}\n\n", self.path.display(), self.file_system, self.mount_point);
        for f in self.findings.iter().filter(|f| f.rules_out) {
            let why = f.why.as_deref().unwrap_or(f.topic);
            text += &format!("No store can be used here: {why} ({})\n", f.found);
        }
        let row = |p: &Promise| [p.name(), p.class_process.text(), p.class_power.text()].map(str::to_owned).to_vec();
        let rows: Vec<_> = self.promises.iter().map(row).collect();
        text += &table(&["committed changes when …", "class process", "class power"], &rows);
        text += "\nwhy not more\n";
        let mut said: Vec<&String> = Vec::new();
        for reason in self.promises.iter().flat_map(|p| &p.because) {
            if !said.contains(&reason) {
                text += &format!("  - {reason}\n");
                said.push(reason);
            }
        }
        text += "\nwhat was found\n";
        let facts: Vec<(&str, String)> = self.findings.iter().map(|f| (f.topic, self.fact(f))).collect();
        text += &pairs(&facts).lines().map(|line| format!("  {line}\n")).collect::<String>();
        text += &format!("\nhow to try each face (after `mkdir {0} && cd {0}`)\n", self.faces.directory);
        let face = |f: &Face| (f.name, f.why_not.as_ref().map_or(f.try_it.clone(), |why| format!("not here: {why}")));
        let faces: Vec<(&str, String)> = self.faces.faces.iter().map(face).collect();
        text += &pairs(&faces).lines().map(|line| format!("  {line}\n")).collect::<String>();
        text += match &self.store {
            Some(store) if store["clean"] == true => "\na store is here, and clean; `untorn status` shows it\n",
            Some(_) => "\na store is here, with committed changes in its journal; `untorn status` shows it\n",
            None => "",
        };
        text
    }

    /// The text of a finding. Reasons that were printed above are not repeated.
    fn fact(&self, f: &Finding) -> String {
        let said = f.rules_out || FAILURES.iter().any(|&failure| f.verdict(failure) < Verdict::Kept);
        match &f.why {
            Some(why) if !said => format!("{} ({why})", f.found),
            _ => f.found.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(failure: Failure, findings: &[Finding]) -> (Verdict, Verdict) {
        let p = Promise::of(failure, findings);
        (p.class_process, p.class_power)
    }

    #[test]
    fn the_worst_finding_decides() {
        let crashes = [Failure::KernelCrash, Failure::PowerCut];
        let depends = Finding::new("a", "x").lowers(&crashes, Verdict::Depends, "maybe");
        let lost = Finding::new("b", "y").lowers(&[Failure::PowerCut], Verdict::NotKept, "never");
        let all = [Finding::new("c", "z"), depends, lost];
        assert_eq!(promise(Failure::ProcessKilled, &all), (Verdict::Kept, Verdict::Kept));
        assert_eq!(promise(Failure::KernelCrash, &all), (Verdict::NotKept, Verdict::Depends));
        assert_eq!(promise(Failure::PowerCut, &all), (Verdict::NotKept, Verdict::NotKept));
        assert_eq!(Promise::of(Failure::PowerCut, &all).because[..2], ["a x: maybe", "b y: never"]);

        let out = [Finding::new("d", "w").rules_out("impossible")];
        assert_eq!(promise(Failure::ProcessKilled, &out), (Verdict::NotKept, Verdict::NotKept));
    }
}
