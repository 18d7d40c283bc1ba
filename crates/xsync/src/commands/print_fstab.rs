//! Prints, for `--print-fstab`, the commands by which an administrator prepares a directory for ordinary users.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The size of the image by default.
const SIZE_DEFAULT: &str = "4G";
const IMAGES: &str = "/var/lib/untorn-xsync";

/// The parts that the commands set up.
#[derive(Debug)]
pub struct Provided {
    /// The mount point of the file system.
    pub dir: PathBuf,
    /// The image, and its size as `fallocate` takes it.
    pub image: PathBuf,
    /// The size of the image.
    pub size: String,
    /// The user who may write there. None if unknown.
    pub owner: Option<u32>,
    /// The path of this program.
    pub program: PathBuf,
}

impl Provided {
    /// Parses the words of the command line: a directory, and an image as `FILE:SIZE`, each at most once.
    pub fn of(words: &[String]) -> Result<Provided> {
        let (images, dirs): (Vec<&String>, Vec<&String>) = words.iter().partition(|word| word.contains(':'));
        anyhow::ensure!(
            images.len() <= 1 && dirs.len() <= 1,
            "--print-fstab takes a directory and an image (FILE:SIZE), each at most once"
        );
        let dir =
            std::path::absolute(dirs.first().map_or("/srv/untorn", |dir| dir.as_str())).context("the directory")?;
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (image, size) = match images.first().and_then(|word| word.rsplit_once(':')) {
            Some((image, size)) => (std::path::absolute(image).context("the image")?, size.to_owned()),
            None => (Path::new(IMAGES).join(format!("{name}.ext4")), SIZE_DEFAULT.to_owned()),
        };
        anyhow::ensure!(
            size.chars().all(|c| c.is_ascii_alphanumeric()) && size.starts_with(|c: char| c.is_ascii_digit()),
            "`{size}` is no size: give a number of bytes, or one with K, M, G or T"
        );
        for path in [&dir, &image] {
            let text = path.to_str().filter(|text| !text.contains(['\n', '\'', '"', '\\', '%', '$']));
            anyhow::ensure!(text.is_some(), "{} has characters in it that a line of fstab cannot have", path.display());
        }
        let sudo = std::env::var("SUDO_UID").ok().and_then(|user| user.parse().ok());
        let own = rustix::process::geteuid();
        let owner = if own.is_root() { sudo } else { Some(own.as_raw()) };
        let program = std::env::current_exe().context("this program's own path")?;
        Ok(Provided { dir, image, size, owner, program })
    }

    /// The commands, for root's shell.
    pub fn commands(&self) -> String {
        let Provided { dir, image, size, owner, program } = self;
        let (dir, image, program) = (dir.display().to_string(), image.display().to_string(), program.display());
        let place = Path::new(&image).parent().unwrap_or(Path::new("/")).display().to_string();
        let line = format!(
            "{} {} ext4 loop,data=journal,noatime,nodev,nosuid,errors=remount-ro 0 2",
            in_fstab(&image),
            in_fstab(&dir)
        );
        let plain: String = dir.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let unit = format!("untorn-xsync-watch{plain}.service");
        let owner = owner.map_or("${OWNER:?the user who is to have it}".to_owned(), |owner| owner.to_string());
        format!(
            "\
# As root, once. An image with an ext4 file system whose journal takes data, too:
set -e
mkdir -p '{place}' '{dir}'
test ! -e '{image}'
fallocate -l {size} '{image}'
chmod 600 '{image}'
mkfs.ext4 -q -F -m 0 -O ^fast_commit,^encrypt,^casefold,^verity \\
  -E lazy_itable_init=0,lazy_journal_init=0,nodiscard '{image}'
# Mounted at each start of the machine, and now:
printf '%s\\n' '{line}' >> /etc/fstab
mount '{dir}'
# For this user:
chown {owner} '{dir}'
# Outside readers wait for a commit, as long as this runs:
mkdir -p /etc/systemd/system
cat > '/etc/systemd/system/{unit}' <<'END'
[Unit]
Description=Outside readers of {dir} wait for what sessions of untorn xsync have done
RequiresMountsFor=\"{dir}\"

[Service]
ExecStart=\"{program}\" --watch \"{dir}\"
Restart=always

[Install]
WantedBy=multi-user.target
END
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl enable --now '{unit}'
else
  echo \"without systemd, run at each start: '{program}' --watch '{dir}'\"
fi
"
        )
    }
}

/// Escapes a path for fstab.
fn in_fstab(path: &str) -> String {
    path.replace(' ', "\\040").replace('\t', "\\011")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_and_a_directory_are_told_apart() {
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let provided = Provided::of(&words(&["/srv/a b", "/images/x:8G"])).unwrap();
        assert_eq!((provided.dir.as_path(), provided.size.as_str()), (Path::new("/srv/a b"), "8G"));
        assert!(provided.commands().contains("/images/x /srv/a\\040b ext4 loop,data=journal"));
        let provided = Provided::of(&[]).unwrap();
        assert_eq!(provided.image, Path::new("/var/lib/untorn-xsync/untorn.ext4"));
        for wrong in [["/a", "/b"], ["/a:1G", "/b:1G"], ["/a:G;rm", "/b"], ["/a'", "/b:1G"]] {
            assert!(Provided::of(&words(&wrong)).is_err(), "{wrong:?}");
        }
    }
}
