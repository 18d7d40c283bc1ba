//! The amount of memory that there is.

use crate::mapping::MemoryLimit;
use std::fs::read_to_string;
use std::path::Path;

/// The smaller of the machine's memory and the limit of this process's memory cgroup, both with swap.
pub fn memory_limit() -> Option<MemoryLimit> {
    let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let swap = of("SwapTotal").unwrap_or(0);
    let machine = of("MemTotal").map(|ram| MemoryLimit { bytes: ram + swap, of: "this machine".into() });
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().flat_map(|line| group_limits(line, swap)).chain(machine).min_by_key(|limit| limit.bytes)
}

/// The limits of one line of `/proc/self/cgroup`, `ID:CONTROLLERS:PATH`: those of the group and of all groups above it.
fn group_limits(line: &str, swap: u64) -> Vec<MemoryLimit> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
        return Vec::new();
    };
    let number = |path: &Path| read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let (root, v2) = match controllers {
        "" => ("/sys/fs/cgroup", true),
        list if list.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", false),
        _ => return Vec::new(),
    };
    let inside = Path::new(path.trim_start_matches('/'));
    let groups = inside.ancestors().map(|group| Path::new(root).join(group));
    let limits = groups.filter_map(|group| {
        let bytes = if v2 {
            // `max` is not a number, and means no limit.
            let most = number(&group.join("memory.max"))?;
            most.saturating_add(number(&group.join("memory.swap.max")).unwrap_or(swap).min(swap))
        } else {
            let most = number(&group.join("memory.limit_in_bytes"))?;
            let with_swap = number(&group.join("memory.memsw.limit_in_bytes"));
            with_swap.unwrap_or(u64::MAX).min(most.saturating_add(swap))
        };
        Some(MemoryLimit { bytes, of: format!("the memory cgroup {}", group.display()) })
    });
    limits.collect()
}
