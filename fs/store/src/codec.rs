use std::str::FromStr;

/// How a store keeps its records on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// As they are.
    #[default]
    Raw,
    /// Each record a Zstandard frame of its own, or as it is where that would not be smaller.
    Zstd,
    /// As [`Codec::Zstd`], with a dictionary that all records share and the store holds.
    ZstdDict,
}

impl Codec {
    /// Every codec there is.
    pub const ALL: &[Codec] = &[Codec::Raw, Codec::Zstd, Codec::ZstdDict];

    /// The name in headers and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Raw => "raw",
            Codec::Zstd => "zstd",
            Codec::ZstdDict => "zstd_dict",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ")
    }
}

/// A codec name that batchfs does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec {0:?}; there are {names}", names = Codec::names())]
pub struct UnknownCodec(pub String);

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        Self::ALL
            .iter()
            .copied()
            .find(|c| c.name() == name)
            .ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}
