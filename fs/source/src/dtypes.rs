use std::str::FromStr;

use batchfs_store::{DType, UnknownDType};

/// What the user says that elements are: of files that do not say it themselves, since NumPy has no
/// name for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DTypes(Vec<Said>);

/// One thing said: `bfloat16`, of every file, or `x=bfloat16`, of the stream `x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    stream: Option<String>,
    dtype: DType,
}

impl FromStr for Said {
    type Err = UnknownDType;

    fn from_str(text: &str) -> Result<Self, UnknownDType> {
        // A stream's name may have the sign in it, a dtype's has not.
        let (stream, dtype) = match text.rsplit_once('=') {
            Some((stream, dtype)) => (Some(stream.to_owned()), dtype),
            None => (None, text),
        };
        Ok(Said { stream, dtype: dtype.parse()? })
    }
}

impl From<Vec<Said>> for DTypes {
    fn from(said: Vec<Said>) -> Self {
        Self(said)
    }
}

impl DTypes {
    /// What was said of `stream`, by its name before all else; the last word counts.
    pub fn of(&self, stream: &str) -> Option<DType> {
        let find = |name: Option<&str>| self.0.iter().rfind(|s| s.stream.as_deref() == name);
        find(Some(stream)).or_else(|| find(None)).map(|said| said.dtype)
    }

    /// The streams that something was said of by name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|said| said.stream.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_goes_before_the_rest_and_the_last_word_counts() {
        let said = |all: &[&str]| -> DTypes {
            all.iter().map(|s| s.parse::<Said>().unwrap()).collect::<Vec<_>>().into()
        };
        assert_eq!(said(&[]).of("x"), None);
        let some = said(&["x=bfloat16", "float8_e5m2", "x=float16", "a=b=int8"]);
        assert_eq!(some.of("x"), Some(DType::Float16));
        assert_eq!(some.of("y"), Some(DType::Float8E5M2));
        assert_eq!(some.of("a=b"), Some(DType::Int8));
        assert!("bf16".parse::<Said>().unwrap_err().to_string().contains("bfloat16"));
        assert!("x=".parse::<Said>().is_err());
    }
}
