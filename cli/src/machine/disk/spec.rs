//! Disks as users describe them: by a table of a VM file, or by `--disk`.

use crate::host::size::{Size, split_size};
use crate::host::written::{self, Written};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A disk, as the user describes it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(from = "Written<Table>")]
pub struct DiskSpec {
    /// The file.
    pub file: PathBuf,
    /// Set if the guest only reads the disk.
    pub readonly: bool,
    /// The file's format; `None`: by the file's name.
    pub format: Option<Format>,
    /// The size of the file, which is created with it if it does not exist.
    pub size: Option<Size>,
    /// The disk with the sectors that an image in format qcow2 does not have.
    pub backing: Option<Box<DiskSpec>>,
    /// The file with the sectors of an image in format qcow2 that has none itself.
    pub data: Option<PathBuf>,
}

/// The format of a disk's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The disk's sectors.
    Raw,
    /// An image of QEMU's.
    Qcow2,
}

impl Format {
    /// Its name, for QEMU as well.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    /// The other one.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Raw => Self::Qcow2,
            Self::Qcow2 => Self::Raw,
        }
    }
}

/// A disk in a VM file, if more is said of it than its file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    file: PathBuf,
    #[serde(default)]
    readonly: bool,
    format: Option<Format>,
    size: Option<Size>,
    backing: Option<Box<DiskSpec>>,
    data: Option<PathBuf>,
}

impl written::Table for Table {
    const BOTH: &'static str = "the path of a file, or a table such as { file = \"data.img\", readonly = true }";
}

impl From<Written<Table>> for DiskSpec {
    fn from(written: Written<Table>) -> Self {
        match written {
            Written::Text(file) => Self { file: file.into(), ..Self::default() },
            Written::Table(Table { file, readonly, format, size, backing, data }) => {
                Self { file, readonly, format, size, backing, data }
            }
        }
    }
}

impl FromStr for DiskSpec {
    type Err = String;

    /// `FILE`, with `:ro`, `:raw` or `:qcow2`, and `:SIZE` behind it.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self { file: text.into(), ..Self::default() };
        let mut rest = text;
        while let Some((file, word)) = rest.rsplit_once(':') {
            match word {
                "ro" => spec.readonly = true,
                "raw" => spec.format = Some(Format::Raw),
                "qcow2" => spec.format = Some(Format::Qcow2),
                _ => match split_size(rest).map_err(|why| why.to_string())? {
                    (_, None) => break,
                    (_, size) => spec.size = size,
                },
            }
            rest = file;
        }
        if rest.is_empty() {
            return Err("name a file: --disk FILE, FILE:ro, or FILE:SIZE, such as --disk data.img:2G".into());
        }
        spec.file = rest.into();
        Ok(spec)
    }
}

impl DiskSpec {
    /// The format by the user's choice, or else by the file's name.
    pub(super) fn format(&self) -> Format {
        let is_named = self.file.extension().is_some_and(|end| end.eq_ignore_ascii_case("qcow2"));
        self.format.unwrap_or(if is_named { Format::Qcow2 } else { Format::Raw })
    }

    /// Makes the paths of its files relative to a directory.
    pub(crate) fn place_in(&mut self, dir: &Path) {
        self.file = dir.join(&self.file);
        self.data.iter_mut().for_each(|data| *data = dir.join(&*data));
        self.backing.iter_mut().for_each(|backing| backing.place_in(dir));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> DiskSpec {
        text.parse().expect("a disk")
    }

    #[test]
    fn a_file_and_what_is_said_of_it() {
        let plain = DiskSpec { file: "a".into(), ..DiskSpec::default() };
        assert_eq!(spec("a"), plain);
        assert_eq!(spec("a:ro"), DiskSpec { readonly: true, ..plain.clone() });
        let all = DiskSpec { readonly: true, format: Some(Format::Raw), size: Some(Size(2 << 30)), ..plain.clone() };
        assert_eq!((spec("a:ro:2G:raw"), spec("a:raw:2G:ro")), (all.clone(), all));
        assert_eq!(spec("a:b:ro").file, Path::new("a:b"));
        assert_eq!(spec("backup-10:30.img").file, Path::new("backup-10:30.img"));
        for (text, word) in [("x.img:-5G", "-5G"), ("x.img:1.2.3G:ro", "1.2.3G"), ("x:1,5G", "1,5G"), ("x:-5", "-5")] {
            let why = text.parse::<DiskSpec>().expect_err(text);
            assert!(why.contains(&format!("`{word}` is not an amount of memory")), "{why}");
        }
        assert_eq!((spec("a:3").file.as_path(), spec("a:x5G").file.as_path()), (Path::new("a:3"), Path::new("a:x5G")));
        assert!("".parse::<DiskSpec>().is_err() && ":ro".parse::<DiskSpec>().is_err());
    }

    #[test]
    fn an_image_names_further_files() {
        let mut disk: DiskSpec =
            toml::from_str("file = 'a'\nbacking = { file = 'b', backing = '/c' }\ndata = 'd'").expect("valid");
        disk.place_in(Path::new("/dir"));
        let last = DiskSpec { file: "/c".into(), ..DiskSpec::default() };
        let backing = DiskSpec { file: "/dir/b".into(), backing: Some(Box::new(last)), ..DiskSpec::default() };
        let all = DiskSpec {
            file: "/dir/a".into(),
            backing: Some(Box::new(backing)),
            data: Some("/dir/d".into()),
            ..DiskSpec::default()
        };
        assert_eq!(disk, all);
    }
}
