//! Settings of S3 from the environment and from the files of its own programs (`~/.aws/credentials`, `~/.aws/config`).

use std::collections::HashMap;
use std::path::PathBuf;

/// The settings that those files give where the environment gives none.
#[derive(Debug, Default)]
pub struct Profile {
    /// The key's id.
    pub key: Option<String>,
    /// The key.
    pub secret: Option<String>,
    /// The token of a temporary key.
    pub token: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// The server, if it is not Amazon's.
    pub endpoint: Option<String>,
}

impl Profile {
    /// Reads the environment, and the chosen profile of the files.
    pub fn read() -> Profile {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let chosen = variable("AWS_PROFILE").unwrap_or_else(|| "default".into());
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".aws");
        let path = |name: &str, file: &str| variable(name).map_or_else(|| home().join(file), PathBuf::from);
        let of_file = |name, file, section: &str| {
            section_of(&std::fs::read_to_string(path(name, file)).unwrap_or_default(), section)
        };
        let in_config = if chosen == "default" { chosen.clone() } else { format!("profile {chosen}") };
        let mut found = of_file("AWS_CONFIG_FILE", "config", &in_config);
        found.extend(of_file("AWS_SHARED_CREDENTIALS_FILE", "credentials", &chosen));
        let mut setting =
            |names: &[&str], key: &str| names.iter().find_map(|name| variable(name)).or_else(|| found.remove(key));
        let endpoint = setting(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"], "endpoint_url");
        let region = setting(&["AWS_REGION", "AWS_DEFAULT_REGION"], "region");
        if variable("AWS_ACCESS_KEY_ID").is_some() {
            // The environment has the whole key then; the token of another one does not belong to it.
            return Profile { region, endpoint, ..Profile::default() };
        }
        let key = setting(&[], "aws_access_key_id");
        let secret = setting(&[], "aws_secret_access_key");
        Profile { key, secret, token: setting(&[], "aws_session_token"), region, endpoint }
    }
}

/// The settings of a section.
fn section_of(text: &str, section: &str) -> HashMap<String, String> {
    let mut settings = HashMap::new();
    let mut is_in = false;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_in = name.trim() == section;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_in) {
            settings.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_begins() {
        let text = "[default]\na = 1\n# b = 2\n[profile x]\nA=3\n\n[other]\na=4\n";
        assert_eq!(section_of(text, "default"), HashMap::from([("a".into(), "1".into())]));
        assert_eq!(section_of(text, "profile x")["a"], "3");
        assert!(section_of(text, "none").is_empty());
    }
}
