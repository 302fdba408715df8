/// How a store keeps its records on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// As they are.
    #[default]
    Raw,
}

impl Codec {
    /// Every codec there is.
    pub const ALL: &[Codec] = &[Codec::Raw];

    /// The name in headers and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::Raw => "raw",
        }
    }

    pub(crate) fn names() -> String {
        Self::ALL.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ")
    }
}
