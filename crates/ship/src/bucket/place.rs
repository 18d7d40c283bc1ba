//! The URL of a bucket, and opening it with the credentials that the environment and the files of the cloud's own
//! programs give.

use crate::bucket::profile::Profile;
use crate::bucket::remote::ObjectBucket;
use crate::bucket::secrets::{Secrets, check_endpoint, check_settings};
use crate::bucket::ssh::{Remote, SshBucket};
use crate::bucket::{Bucket, Failed};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, RetryConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// A place for shipping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    kind: Kind,
    /// The bucket's name.
    bucket: String,
    prefix: Option<Path>,
    directory: PathBuf,
    remote: Option<Remote>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Google,
    Azure,
    Directory,
    Ssh,
}

const FORMS: &str =
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, file:///DIRECTORY or ssh://HOST/DIRECTORY";

impl Place {
    /// A local directory.
    pub fn of_directory(directory: PathBuf) -> Place {
        Place { kind: Kind::Directory, bucket: String::new(), prefix: None, directory, remote: None }
    }

    /// Reads a URL.
    ///
    /// # Errors
    /// The reason, as a sentence that never repeats credentials.
    pub fn parse(text: &str) -> Result<Place, String> {
        let no_url = |_| format!("the place is no URL; it has the form {FORMS}");
        let url = Url::parse(text).map_err(no_url)?;
        if url.scheme() == "ssh" {
            return Place::on_another_machine(&url);
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err("the URL contains credentials or parameters, which everybody would see in the list of \
                        processes: put credentials into the environment (AWS_ACCESS_KEY_ID, …) or into the files of \
                        the cloud's own programs, and leave everything before `@` and behind `?` out"
                .into());
        }
        if url.fragment().is_some() || url.port().is_some() {
            return Err(format!("the URL has parts that no place has; it has the form {FORMS}"));
        }
        let kind = match url.scheme() {
            "s3" => Kind::S3,
            "gs" => Kind::Google,
            "az" | "azure" => Kind::Azure,
            "file" => Kind::Directory,
            scheme => return Err(format!("{scheme}:// is no place for shipping; it has the form {FORMS}")),
        };
        if kind == Kind::Directory {
            let directory = url.to_file_path().map_err(|()| format!("the place has the form {FORMS}"))?;
            return Ok(Place { kind, bucket: String::new(), prefix: None, directory, remote: None });
        }
        let bucket = url.host_str().filter(|host| !host.is_empty()).unwrap_or_default().to_owned();
        if bucket.is_empty() {
            return Err(format!("the URL names no bucket; it has the form {FORMS}"));
        }
        let prefix = Path::from_url_path(url.path()).map_err(|_| format!("{} is no prefix", url.path()))?;
        let prefix = (!prefix.as_ref().is_empty()).then_some(prefix);
        Ok(Place { kind, bucket, prefix, directory: PathBuf::new(), remote: None })
    }

    /// `ssh://[USER@]HOST[:PORT]/DIRECTORY`, or `ssh://HOST/~/DIRECTORY` below the home directory.
    fn on_another_machine(url: &Url) -> Result<Place, String> {
        if url.password().is_some() {
            return Err("the URL contains a password, which everybody would see in the list of processes: use a key \
                        of ssh"
                .into());
        }
        let host = url.host_str().unwrap_or_default();
        let path = percent_decode(url.path()).map_err(|()| format!("{} is no path", url.path()))?;
        let directory = path.strip_prefix("/~/").map_or(path.clone(), str::to_owned);
        // A host or user that begins with a dash would be an option of ssh.
        if host.is_empty()
            || host.starts_with('-')
            || url.username().starts_with('-')
            || matches!(&*directory, "" | "/")
        {
            return Err(format!("the URL names no directory of a host; it has the form {FORMS}"));
        }
        let host = match url.username() {
            "" => host.to_owned(),
            user => format!("{user}@{host}"),
        };
        let remote = Some(Remote { host, port: url.port(), directory });
        Ok(Place { kind: Kind::Ssh, bucket: String::new(), prefix: None, directory: PathBuf::new(), remote })
    }

    /// The directory, if it is one of this machine.
    pub fn directory(&self) -> Option<&std::path::Path> {
        (self.kind == Kind::Directory).then_some(&*self.directory)
    }

    /// The place as a text that names it, endpoint included, without credentials.
    pub fn name(&self) -> String {
        let scheme = match self.kind {
            Kind::S3 => "s3",
            Kind::Google => "gs",
            Kind::Azure => "az",
            Kind::Directory => return format!("file://{}", self.directory.display()),
            Kind::Ssh => {
                let remote = self.remote.iter().map(|remote| {
                    let port = remote.port.map_or(String::new(), |port| format!(":{port}"));
                    let home = if remote.directory.starts_with('/') { "" } else { "/~/" };
                    format!("ssh://{}{port}{home}{}", remote.host, remote.directory)
                });
                return remote.collect();
            }
        };
        let prefix = self.prefix.as_ref().map_or(String::new(), |prefix| format!("/{prefix}"));
        let at = match self.kind {
            Kind::S3 => Profile::read().endpoint.map_or(String::new(), |endpoint| match check_endpoint(&endpoint) {
                Ok(()) => format!(" at {endpoint}"),
                Err(_) => " at an endpoint that cannot be used".into(),
            }),
            _ => String::new(),
        };
        Secrets::of_environment().remove_from(&format!("{scheme}://{}{prefix}{at}", self.bucket))
    }

    /// Opens the place. Nothing is sent yet. A local directory is made with `create`.
    ///
    /// # Errors
    /// Credentials or other settings are missing.
    pub fn open(&self, create: bool) -> Result<Box<dyn Bucket>, Failed> {
        // Once in a process is enough; later calls change nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match self.kind {
            Kind::S3 => self.s3(),
            Kind::Google => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket);
                let built = builder.with_retry(once()).with_client_options(client()).build();
                self.opened(built.map(|store| Arc::new(store) as _), Secrets::of_environment())
            }
            Kind::Azure => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(&self.bucket);
                let built = builder.with_retry(once()).with_client_options(client()).build();
                self.opened(built.map(|store| Arc::new(store) as _), Secrets::of_environment())
            }
            Kind::Directory => {
                if create {
                    self.make_directory()?;
                }
                Ok(Box::new(ObjectBucket::in_directory(self.directory.clone())?))
            }
            Kind::Ssh => {
                let remote = self
                    .remote
                    .clone()
                    .ok_or_else(|| Failed { reason: "the place names no machine".into(), is_transient: false })?;
                Ok(Box::new(SshBucket::new(remote)))
            }
        }
    }

    fn s3(&self) -> Result<Box<dyn Bucket>, Failed> {
        let profile = Profile::read();
        check_settings(&profile).map_err(|reason| Failed { reason, is_transient: false })?;
        let mut secrets = Secrets::of_environment();
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(&self.bucket);
        if let (Some(key), Some(secret)) = (&profile.key, &profile.secret) {
            secrets.add(key);
            secrets.add(secret);
            builder = builder.with_access_key_id(key).with_secret_access_key(secret);
            if let Some(token) = &profile.token {
                secrets.add(token);
                builder = builder.with_token(token);
            }
        }
        if let Some(region) = &profile.region {
            builder = builder.with_region(region);
        }
        let mut client = client();
        if let Some(endpoint) = &profile.endpoint {
            builder = builder.with_endpoint(endpoint);
            // The user chose this endpoint, often one on the same machine.
            client = client.with_allow_http(endpoint.starts_with("http://"));
        }
        let built = builder
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(once())
            .with_client_options(client)
            .build();
        self.opened(built.map(|store| Arc::new(store) as _), secrets)
    }

    fn opened(
        &self,
        built: object_store::Result<Arc<dyn object_store::ObjectStore>>,
        secrets: Secrets,
    ) -> Result<Box<dyn Bucket>, Failed> {
        match built {
            Ok(store) => Ok(Box::new(ObjectBucket::new(store, self.prefix.clone(), secrets))),
            Err(e) => {
                let reason = secrets.remove_from(&format!("open {}: {e}", self.name()));
                Err(Failed { reason, is_transient: false })
            }
        }
    }

    fn make_directory(&self) -> Result<(), Failed> {
        use std::os::unix::fs::DirBuilderExt;
        let failed = |verb: &str, e: std::io::Error| Failed {
            reason: format!("{verb} {}: {e}", self.directory.display()),
            is_transient: false,
        };
        let missing: Vec<_> = self.directory.ancestors().take_while(|dir| !dir.exists()).collect();
        // Objects contain the bytes of private files.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|e| failed("make", e))?;
        for parent in missing.iter().filter_map(|dir| dir.parent()) {
            let flushed = std::fs::File::open(parent).and_then(|parent| parent.sync_all());
            flushed.map_err(|e| failed("flush the directory of", e))?;
        }
        Ok(())
    }
}

fn percent_decode(text: &str) -> Result<String, ()> {
    let path = Path::from_url_path(text).map_err(|_| ())?;
    Ok(format!("/{path}"))
}

/// No request is repeated inside: a late answer must not be mistaken for the one to a second request.
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn client() -> ClientOptions {
    ClientOptions::new()
        .with_timeout(Duration::from_secs(600))
        .with_connect_timeout(Duration::from_secs(10))
        .with_http1_only()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_every_kind_are_read() {
        let named = |text: &str| Place::parse(text).map(|place| place.name());
        assert_eq!(named("gs://bucket").unwrap(), "gs://bucket");
        assert_eq!(named("gs://bucket/a/b/").unwrap(), "gs://bucket/a/b");
        assert_eq!(named("az://container/a").unwrap(), "az://container/a");
        assert_eq!(named("file:///a%20b/c").unwrap(), "file:///a b/c");
        assert_eq!(named("ssh://ann@host:22022/a%20b").unwrap(), "ssh://ann@host:22022/a b");
        assert_eq!(named("ssh://host/~/a").unwrap(), "ssh://host/~/a");
        for bad in [
            "bucket",
            "/dir",
            "http://host/a",
            "s3://",
            "s3:///a",
            "file://host/a",
            "ssh://-oProxyCommand=x/a",
            "ssh://host",
            "ssh://u:p@host/a",
            "gs://b/../a",
        ] {
            // A URL's own rules take `..` away before anybody sees it.
            assert!(Place::parse(bad).is_err() || bad.contains(".."), "{bad}");
        }
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for bad in ["s3://key:hunter2@bucket/a", "s3://key@bucket", "az://container/a?sig=hunter2"] {
            let refused = Place::parse(bad).unwrap_err();
            assert!(refused.contains("environment") && !refused.contains("hunter2"), "{refused}");
        }
    }
}
