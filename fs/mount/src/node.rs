use batchfs_batch::{Face, Key, ViewSpec};

/// Everything that has a name in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    Top(Top),
    /// Part of a view, by its number.
    Inner(u16, Inner),
    /// A batch, record or index in one of its faces.
    File(Key),
    /// Another spelling of a view's spec: a link to the folder of that name.
    Link(ViewSpec),
}

/// What there is once per mount. The values are inode numbers, and FUSE's root is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Top {
    Root = 1,
    Readme = 2,
    Control = 3,
    Config = 4,
    Metrics = 5,
    Errors = 6,
    Views = 7,
    Service = 8,
}

/// What there is in every view; streams go by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inner {
    Indices,
    Stream(u16),
    Schema(u16),
    Records(u16),
    Batches(u16),
    All,
    AllBatches,
    /// The folder of a view other than the mount's own, whose folder is the root.
    View,
}

impl Top {
    pub(crate) const ALL: &[Top] = &[
        Top::Root,
        Top::Readme,
        Top::Control,
        Top::Config,
        Top::Metrics,
        Top::Errors,
        Top::Views,
        Top::Service,
    ];
}

impl Node {
    pub(crate) fn is_dir(self) -> bool {
        match self {
            Node::Top(top) => matches!(top, Top::Root | Top::Control | Top::Views),
            Node::Inner(_, inner) => !matches!(inner, Inner::Schema(_)),
            Node::File(_) | Node::Link(_) => false,
        }
    }

    /// The number of the view that it is part of; 0 is the mount's own.
    pub(crate) fn view(self) -> u16 {
        match self {
            Node::Inner(view, _) | Node::File(Key { view, .. }) => view,
            Node::Top(_) | Node::Link(_) => 0,
        }
    }

    /// The folder that it is in, for folders.
    pub(crate) fn parent(self) -> Node {
        match self {
            Node::Inner(view, Inner::Records(s) | Inner::Batches(s)) => {
                Node::Inner(view, Inner::Stream(s))
            }
            Node::Inner(view, Inner::AllBatches) => Node::Inner(view, Inner::All),
            Node::Inner(_, Inner::View) => Node::Top(Top::Views),
            Node::Inner(view, _) if view != 0 => Node::Inner(view, Inner::View),
            _ => Node::Top(Top::Root),
        }
    }

    /// Whether the contents differ from one look to the next.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Node::Top(Top::Metrics | Top::Errors))
    }
}

/// Splits a file name into its number and face: `17`, `17.npy`.
///
/// Numbers are plain decimals, without sign or leading zeros, so that each has one name.
pub(crate) fn parse_numbered(name: &str) -> Option<(u64, Face)> {
    let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
    let (number, suffix) = name.split_at(digits);
    if number.len() > 1 && number.starts_with('0') {
        return None;
    }
    Some((number.parse().ok()?, Face::of_suffix(suffix)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_names() {
        assert_eq!(parse_numbered("17"), Some((17, Face::Bare)));
        assert_eq!(parse_numbered("0.npy"), Some((0, Face::Npy)));
        let last = parse_numbered("18446744073709551615.json");
        assert_eq!(last, Some((u64::MAX, Face::Json)));
        let not = [
            "",
            "07",
            "00",
            "+1",
            "-1",
            "1.",
            "1.np",
            "1.npy.npy",
            ".npy",
            "1 ",
            "１",
            "18446744073709551616",
            "0x1",
            "1.NPY",
        ];
        for name in not {
            assert_eq!(parse_numbered(name), None, "{name:?}");
        }
    }
}
