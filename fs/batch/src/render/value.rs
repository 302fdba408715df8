//! Single elements as text.

use batchfs_store::DType;

/// A binary floating-point format of at most 16 bits.
struct Small {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    /// What the largest exponent means.
    top: Top,
    /// Whether minus zero is the one NaN.
    no_minus_zero: bool,
}

enum Top {
    /// Infinities and NaNs, as in IEEE 754.
    Ieee,
    /// Numbers, but for all ones.
    OneNan,
    /// Numbers only.
    Numbers,
}

const F16: Small =
    Small { exponent: 5, mantissa: 10, bias: 15, top: Top::Ieee, no_minus_zero: false };
const E4M3FN: Small =
    Small { exponent: 4, mantissa: 3, bias: 7, top: Top::OneNan, no_minus_zero: false };
const E4M3FNUZ: Small =
    Small { exponent: 4, mantissa: 3, bias: 8, top: Top::Numbers, no_minus_zero: true };
const E5M2: Small =
    Small { exponent: 5, mantissa: 2, bias: 15, top: Top::Ieee, no_minus_zero: false };
const E5M2FNUZ: Small =
    Small { exponent: 5, mantissa: 2, bias: 16, top: Top::Numbers, no_minus_zero: true };

impl Small {
    fn decode(&self, bits: u16) -> f32 {
        let sign_at = self.exponent + self.mantissa;
        let negative = bits >> sign_at & 1 == 1;
        let (exponent_max, mantissa_max) =
            ((1u16 << self.exponent) - 1, (1u16 << self.mantissa) - 1);
        let exponent = bits >> self.mantissa & exponent_max;
        let mantissa = bits & mantissa_max;
        if self.no_minus_zero && bits == 1 << sign_at {
            return f32::NAN;
        }
        if exponent == exponent_max {
            match self.top {
                Top::Ieee if mantissa == 0 && negative => return f32::NEG_INFINITY,
                Top::Ieee if mantissa == 0 => return f32::INFINITY,
                Top::Ieee => return f32::NAN,
                Top::OneNan if mantissa == mantissa_max => return f32::NAN,
                Top::OneNan | Top::Numbers => {}
            }
        }
        // All of these are exact in f32.
        let scale = |e: i32| 2f32.powi(e - self.bias - self.mantissa as i32);
        let size = match exponent {
            0 => f32::from(mantissa) * scale(1),
            e => f32::from(mantissa + (1 << self.mantissa)) * scale(i32::from(e)),
        };
        if negative { -size } else { size }
    }
}

fn bytes<const N: usize>(element: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    // An element is as long as its type says.
    out.copy_from_slice(&element[..N]);
    out
}

fn float(value: f64, text: &str) -> String {
    if value.is_nan() { "nan".to_owned() } else { text.to_owned() }
}

fn f32_text(value: f32) -> String {
    float(value.into(), &format!("{value:?}"))
}

fn complex(re: f64, im: f64, re_text: &str, im_text: &str) -> String {
    let plus = if im_text.starts_with('-') { "" } else { "+" };
    format!("{}{plus}{}j", float(re, re_text), float(im, im_text))
}

/// The value of one element: the shortest digits that give it back.
pub(super) fn show(dtype: DType, element: &[u8]) -> String {
    let small = |format: &Small| match dtype.size() {
        1 => f32_text(format.decode(element[0].into())),
        _ => f32_text(format.decode(u16::from_le_bytes(bytes(element)))),
    };
    match dtype {
        DType::Bool => if element[0] == 0 { "False" } else { "True" }.to_owned(),
        DType::Int8 => i8::from_le_bytes(bytes(element)).to_string(),
        DType::Int16 => i16::from_le_bytes(bytes(element)).to_string(),
        DType::Int32 => i32::from_le_bytes(bytes(element)).to_string(),
        DType::Int64 => i64::from_le_bytes(bytes(element)).to_string(),
        DType::UInt8 => element[0].to_string(),
        DType::UInt16 => u16::from_le_bytes(bytes(element)).to_string(),
        DType::UInt32 => u32::from_le_bytes(bytes(element)).to_string(),
        DType::UInt64 => u64::from_le_bytes(bytes(element)).to_string(),
        DType::Float16 => small(&F16),
        DType::Float32 => f32_text(f32::from_le_bytes(bytes(element))),
        DType::Float64 => {
            let value = f64::from_le_bytes(bytes(element));
            float(value, &format!("{value:?}"))
        }
        DType::BFloat16 => {
            f32_text(f32::from_bits(u32::from(u16::from_le_bytes(bytes(element))) << 16))
        }
        DType::Complex64 => {
            let (re, im) = element.split_at(4);
            let (re, im) = (f32::from_le_bytes(bytes(re)), f32::from_le_bytes(bytes(im)));
            complex(re.into(), im.into(), &format!("{re:?}"), &format!("{im:?}"))
        }
        DType::Complex128 => {
            let (re, im) = element.split_at(8);
            let (re, im) = (f64::from_le_bytes(bytes(re)), f64::from_le_bytes(bytes(im)));
            complex(re, im, &format!("{re:?}"), &format!("{im:?}"))
        }
        DType::Float8E4M3FN => small(&E4M3FN),
        DType::Float8E4M3FNUZ => small(&E4M3FNUZ),
        DType::Float8E5M2 => small(&E5M2),
        DType::Float8E5M2FNUZ => small(&E5M2FNUZ),
        DType::Float8E8M0FNU => match element[0] {
            255 => "nan".to_owned(),
            e => f32_text(2f32.powi(i32::from(e) - 127)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_are_read_as_their_formats_say() {
        let cases: [(DType, u8, &str); 16] = [
            (DType::Float8E4M3FN, 0x38, "1.0"),
            (DType::Float8E4M3FN, 0x7e, "448.0"),
            (DType::Float8E4M3FN, 0x7f, "nan"),
            (DType::Float8E4M3FN, 0x01, "0.001953125"),
            (DType::Float8E4M3FN, 0x80, "-0.0"),
            (DType::Float8E4M3FNUZ, 0x40, "1.0"),
            (DType::Float8E4M3FNUZ, 0x7f, "240.0"),
            (DType::Float8E4M3FNUZ, 0x80, "nan"),
            (DType::Float8E5M2, 0x3c, "1.0"),
            (DType::Float8E5M2, 0x7b, "57344.0"),
            (DType::Float8E5M2, 0xfc, "-inf"),
            (DType::Float8E5M2, 0x7d, "nan"),
            (DType::Float8E5M2FNUZ, 0x7f, "57344.0"),
            (DType::Float8E5M2FNUZ, 0x80, "nan"),
            (DType::Float8E8M0FNU, 127, "1.0"),
            (DType::Float8E8M0FNU, 255, "nan"),
        ];
        for (dtype, bits, text) in cases {
            assert_eq!(show(dtype, &[bits]), text, "{dtype} {bits:#x}");
        }
        assert_eq!(show(DType::Float16, &0x3555u16.to_le_bytes()), "0.33325195");
        assert_eq!(show(DType::Float16, &0x0001u16.to_le_bytes()), "5.9604645e-8");
        assert_eq!(show(DType::Float16, &0x7bffu16.to_le_bytes()), "65504.0");
        assert_eq!(show(DType::BFloat16, &0x3f80u16.to_le_bytes()), "1.0");
    }

    #[test]
    fn the_others() {
        assert_eq!(show(DType::Bool, &[1]), "True");
        assert_eq!(show(DType::Int8, &[255]), "-1");
        assert_eq!(show(DType::UInt64, &u64::MAX.to_le_bytes()), "18446744073709551615");
        assert_eq!(show(DType::Float32, &0.1f32.to_le_bytes()), "0.1");
        assert_eq!(show(DType::Float64, &(-1e300f64).to_le_bytes()), "-1e300");
        let mut pair = 1.5f32.to_le_bytes().to_vec();
        pair.extend((-0.5f32).to_le_bytes());
        assert_eq!(show(DType::Complex64, &pair), "1.5-0.5j");
    }
}
