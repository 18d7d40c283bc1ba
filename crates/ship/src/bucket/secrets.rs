//! Credentials that this process knows, to keep them out of messages, and checks of those that no request can carry.

use crate::bucket::profile::Profile;
use url::Url;

/// The names of variables with credentials.
const VARIABLES: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_CLIENT_SECRET",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// The variables with the server of S3.
const ENDPOINTS: &[&str] = &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// Refuses settings of S3 that no request can carry.
///
/// # Errors
/// The reason, as a sentence that never repeats a value.
pub fn check_settings(profile: &Profile) -> Result<(), String> {
    let variables =
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"];
    for name in variables {
        check_value(name, std::env::var(name).ok().as_deref())?;
    }
    check_value("aws_access_key_id of the profile", profile.key.as_deref())?;
    check_value("aws_secret_access_key of the profile", profile.secret.as_deref())?;
    check_value("aws_session_token of the profile", profile.token.as_deref())?;
    check_value("region of the profile", profile.region.as_deref())?;
    let is_empty = |name: &str| std::env::var_os(name).is_some_and(|value| value.is_empty());
    // This one counts before the others, even without a value.
    let counts = |name: &str| profile.endpoint.is_none() || name == "AWS_ENDPOINT_URL_S3";
    if let Some(name) = ENDPOINTS.iter().find(|name| is_empty(name) && counts(name)) {
        return Err(format!("{name} is set, and empty: give it the URL of a server, or unset it"));
    }
    profile.endpoint.as_deref().map_or(Ok(()), check_endpoint)
}

fn check_value(name: &str, value: Option<&str>) -> Result<(), String> {
    match value {
        Some(value) if value.contains(char::is_control) => Err(format!(
            "{name} contains a control character, such as the end of a line: set it again without one (a file with \
             Windows' ends of lines leaves a carriage return behind each value)"
        )),
        _ => Ok(()),
    }
}

/// Refuses an endpoint that is no URL of a server, or that contains credentials.
///
/// # Errors
/// The reason, as a sentence that does not repeat the endpoint.
pub fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let named = format!("the endpoint ({}, or endpoint_url of the profile)", ENDPOINTS.join(", "));
    let behind = endpoint.split_once("://").map_or(endpoint, |(_, behind)| behind);
    if behind.split('/').next().is_some_and(|authority| authority.contains('@')) {
        return Err(format!(
            "{named} contains credentials: put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or into the \
             profile, and leave everything before `@` out"
        ));
    }
    // A parser of URLs mends some of these, and the one that sends requests does not.
    let is_plain = endpoint.bytes().all(|c| c.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&c));
    let has_scheme = endpoint.starts_with("http://") || endpoint.starts_with("https://");
    let is_server = |url: &Url| url.has_host() && url.query().is_none() && url.fragment().is_none();
    if !is_plain || !has_scheme || !Url::parse(endpoint).is_ok_and(|url| is_server(&url)) {
        return Err(format!("{named} is no URL of a server: it has the form https://HOST or http://HOST:PORT"));
    }
    Ok(())
}

/// The beginning of a request's signature.
const SIGNATURE: &str = "Signature=";

/// Credentials that no message may contain.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Those in the environment.
    pub fn of_environment() -> Secrets {
        let mut secrets = Secrets::default();
        VARIABLES.iter().filter_map(|name| std::env::var(name).ok()).for_each(|value| secrets.add(&value));
        secrets
    }

    /// Another one.
    pub fn add(&mut self, secret: &str) {
        if secret.len() >= 4 {
            self.0.push(secret.to_owned());
        }
    }

    /// The text without credentials, without signatures, and without the users and queries of URLs, which may hold both.
    pub fn remove_from(&self, text: &str) -> String {
        let mut text = self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "[…]"));
        let mut from = 0;
        while let Some(url) = text[from..].find("://").map(|at| at + from) {
            from = url + 3;
            let authority = text[from..].find(['/', '?', '#', ' ', '"', '>', '\n']).map_or(text.len(), |at| from + at);
            if let Some(at) = text[from..authority].rfind('@') {
                text.replace_range(from..from + at, "[…]");
            }
            let end = text[url..].find([' ', '"', '\'', '>', ')', '\n']).map_or(text.len(), |at| url + at);
            if let Some(query) = text[url..end].find('?').map(|at| url + at) {
                text.replace_range(query..end, "?[…]");
            }
        }
        let mut from = 0;
        while let Some(at) = text[from..].find(SIGNATURE) {
            from += at + SIGNATURE.len();
            let end = text[from..].find([' ', ',', '"', '\'', '\n']).map_or(text.len(), |at| from + at);
            text.replace_range(from..end, "[…]");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_credentials_nor_signatures_stay_in_a_message() {
        let mut secrets = Secrets::default();
        secrets.add("hunter2hunter2");
        let text = "GET https://a.example/b?sig=x&c=d failed (https://a.example/c?e), key hunter2hunter2";
        let left = "GET https://a.example/b?[…] failed (https://a.example/c?[…]), key […]";
        assert_eq!(secrets.remove_from(text), left);
        let text =
            "PUT http://usr:p@w@host:9000/a@b, 'https://usr@host', Credential=x, Signature=1f2e, \"Signature=3d\"";
        let left = "PUT http://[…]@host:9000/a@b, 'https://[…]@host', Credential=x, Signature=[…], \"Signature=[…]\"";
        assert_eq!(secrets.remove_from(text), left);
        assert_eq!(secrets.remove_from("at http://host and a@b; Signature="), "at http://host and a@b; Signature=[…]");
    }

    #[test]
    fn an_endpoint_is_the_url_of_a_server_without_credentials() {
        for good in ["http://127.0.0.1:9000", "https://s3.example", "https://s3.example/a@b/", "http://[::1]:9000"] {
            assert_eq!(check_endpoint(good), Ok(()), "{good}");
        }
        for bad in ["http://usr:hunter2@host", "https://hunter2@host/a", "usr:hunter2@host"] {
            let refused = check_endpoint(bad).unwrap_err();
            assert!(refused.contains("credentials") && !refused.contains("hunter2"), "{refused}");
        }
        let bad = [
            "",
            "127.0.0.1:1",
            "localhost:hunter2",
            "http://bad url",
            "http://hunter2\r",
            "http:hunter2",
            "http://",
            "http://u:hunter2/w@host",
            "http://host/{hunter2}",
            "https://host?hunter2",
            "ftp://hunter2",
        ];
        for bad in bad {
            let refused = check_endpoint(bad).unwrap_err();
            assert!(refused.contains("AWS_ENDPOINT_URL") && !refused.contains("hunter2"), "{bad}: {refused}");
        }
    }

    #[test]
    fn control_characters_are_refused_and_not_repeated() {
        let profile = Profile { secret: Some("hunter2\r".into()), ..Profile::default() };
        let refused = check_settings(&profile).unwrap_err();
        assert!(refused.contains("aws_secret_access_key") && !refused.contains("hunter2"), "{refused}");
    }
}
