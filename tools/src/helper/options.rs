//! The lists of options of mount(8): whose each is.

use std::collections::BTreeMap;

/// Keys of the sampler's spec, of records and of tokens.
const SPEC: [&str; 10] =
    ["mode", "batch", "seed", "remainder", "rank", "world", "lanes", "window", "seq_len", "pieces"];

/// Options of `batchfs mount` with a value.
const VALUES: [&str; 6] = ["memory", "threads", "verify", "log", "column", "budget"];

/// Those that may be given more than once.
const MANY: [&str; 3] = ["dtype", "storage_option", "mix"];

/// Options of `batchfs mount` without a value.
const FLAGS: [&str; 3] = ["cached", "allow_other", "nonempty"];

/// What mount(8), fstab(5) and systemd say of any mount: either it is for them, or it is what a
/// mount is anyway, or it allows what there is nothing of here.
const GENERIC: &[&str] = &[
    "_netdev",
    "async",
    "atime",
    "auto",
    "defaults",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "group",
    "iversion",
    "lazytime",
    "loud",
    "mand",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nogroup",
    "noiversion",
    "nolazytime",
    "nomand",
    "noowner",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "nosymfollow",
    "nouser",
    "nousers",
    "owner",
    "relatime",
    "ro",
    "rw",
    "silent",
    "strictatime",
    "suid",
    "sync",
    "symfollow",
    "user",
    "users",
];

/// The same, with something behind it.
const GENERIC_STARTS: [&str; 6] = ["x-", "X-", "comment=", "helper=", "uhelper=", "user="];

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    spec: BTreeMap<&'static str, String>,
    values: BTreeMap<&'static str, String>,
    flags: Vec<&'static str>,
    many: Vec<(&'static str, String)>,
    /// Options that change nothing here.
    pub unused: Vec<String>,
}

fn one_of(known: &[&'static str], key: &str) -> Option<&'static str> {
    known.iter().copied().find(|one| *one == key)
}

impl Options {
    /// Sorts a list. Of options of one name the last holds: mount(8) appends those of its command
    /// line to those of fstab(5).
    ///
    /// # Errors
    /// Which one is wrong, and what there is. `sloppy` takes unknown ones for unused.
    pub fn parse(list: &str, sloppy: bool) -> Result<Options, String> {
        let mut all = Options::default();
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = match item.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (item, None),
            };
            let needed = || {
                let value = value.filter(|value| !value.is_empty());
                value.map(str::to_owned).ok_or_else(|| format!("-o {item}: {key}= needs a value"))
            };
            if let Some(key) = one_of(&SPEC, key) {
                all.spec.insert(key, needed()?);
            } else if let Some(key) = one_of(&VALUES, key) {
                all.values.insert(key, needed()?);
            } else if let Some(key) = one_of(&MANY, key) {
                all.many.push((key, needed()?));
            } else if let Some(flag) = one_of(&FLAGS, key) {
                if value.is_some() {
                    return Err(format!("-o {item}: {flag} takes no value"));
                }
                if !all.flags.contains(&flag) {
                    all.flags.push(flag);
                }
            } else if item == "remount" {
                return Err("-o remount: a mount cannot be changed; umount it, and mount it again"
                    .to_owned());
            } else if sloppy
                || GENERIC.contains(&item)
                || GENERIC_STARTS.iter().any(|start| item.starts_with(start))
            {
                all.unused.push(item.to_owned());
            } else {
                return Err(format!(
                    "-o {item}: there is no such option; there are {}, {}, {}, {}, and those of fstab(5) that are for any mount (-s takes unknown ones, too)",
                    SPEC.join(", "),
                    VALUES.join(", "),
                    MANY.join(", "),
                    FLAGS.join(", "),
                ));
            }
        }
        Ok(all)
    }

    /// The same as arguments of `batchfs mount`.
    pub fn arguments(&self) -> Vec<String> {
        let mut args = Vec::new();
        if !self.spec.is_empty() {
            let spec: Vec<String> = self.spec.iter().map(|(k, v)| format!("{k}={v}")).collect();
            args.push(format!("--spec={}", spec.join(",")));
        }
        args.extend(self.values.iter().map(|(key, value)| format!("--{key}={value}")));
        let long = |key: &str| key.replace('_', "-");
        args.extend(self.many.iter().map(|(key, value)| format!("--{}={value}", long(key))));
        args.extend(self.flags.iter().map(|flag| format!("--{}", long(flag))));
        args
    }
}

#[cfg(test)]
mod tests {
    use batchfs_sampler::lanes::LaneSpec;
    use batchfs_sampler::{Spec, SpecError};
    use clap::CommandFactory as _;

    use super::*;

    fn args(list: &str) -> Result<Vec<String>, String> {
        Options::parse(list, false).map(|options| options.arguments())
    }

    #[test]
    fn options_are_told_apart() {
        let list = "rw,nosuid,batch=8,seed=2,memory=2GiB,noauto,user=me,allow_other,_netdev,x-systemd.automount,dtype=x=bfloat16,lanes=4,storage_option=endpoint=http://a:1,dtype=e8m0fnu,batch=16,,cached,cached,log=/a=b";
        let expected = [
            "--spec=batch=16,lanes=4,seed=2",
            "--log=/a=b",
            "--memory=2GiB",
            "--dtype=x=bfloat16",
            "--storage-option=endpoint=http://a:1",
            "--dtype=e8m0fnu",
            "--allow-other",
            "--cached",
        ];
        assert_eq!(args(list).unwrap(), expected);
        let unused = Options::parse(list, false).unwrap().unused;
        assert_eq!(unused, ["rw", "nosuid", "noauto", "user=me", "_netdev", "x-systemd.automount"]);
        assert_eq!(args("").unwrap(), [""; 0]);
        assert_eq!(args("defaults").unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let no = |list: &str| args(list).unwrap_err();
        for list in ["batsh=8", "ro,batsh=8", "ro=1", "x", "Batch=8"] {
            assert!(no(list).contains("there are mode, batch"), "{list}");
            assert!(Options::parse(list, true).unwrap().arguments().is_empty());
        }
        assert!(no("batch").contains("batch= needs a value"));
        assert!(no("memory=").contains("memory= needs a value"));
        assert!(no("cached=yes").contains("takes no value"));
        assert!(no("remount,ro").contains("umount it"));
    }

    #[test]
    fn the_keys_are_those_of_spec_and_mount() {
        for key in SPEC {
            let unknown = |e: Option<SpecError>| matches!(e, Some(SpecError::UnknownKey { .. }));
            let text = format!("{key}=");
            assert!(
                !unknown(text.parse::<Spec>().err()) || !unknown(text.parse::<LaneSpec>().err()),
                "{key}"
            );
        }
        let command = crate::args::Args::command();
        let mount = command.find_subcommand("mount").unwrap();
        let here: Vec<&str> = VALUES.iter().chain(&FLAGS).chain(&MANY).copied().collect();
        for key in &here {
            let long = key.replace('_', "-");
            assert!(mount.get_arguments().any(|a| a.get_long() == Some(&long)), "{key}");
        }
        // All that a user may say is here, but for what makes no sense here.
        let left: Vec<&str> = mount
            .get_arguments()
            .filter(|a| !a.is_hide_set())
            .filter_map(|a| a.get_long())
            .filter(|long| !here.contains(&long.replace('-', "_").as_str()))
            .collect();
        assert_eq!(left, ["spec", "foreground"]);
    }
}
