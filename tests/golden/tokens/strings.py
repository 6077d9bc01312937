"""The strings of the tokenizer goldens: code, scripts, emoji, runs, contractions, specials, random Unicode of version 14."""
import random
import unicodedata

CODE = [
    "def f(x):\n    return x ** 2 + 1  # square\n",
    "int main(void) {\n\tprintf(\"%d\\n\", 42);\n\treturn 0;\n}\n",
    "for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];",
    "SELECT name, COUNT(*) FROM users WHERE id >= 1000 GROUP BY name;\r\n",
    "<div class=\"a b\"><p>It's &amp; that</p></div>",
    "{\"key\": [1, 2.5, -3e10, null, true], \"nested\": {\"a\": \"\\u00e9\"}}",
    "#!/bin/sh\nset -eu\nfor f in *.txt; do echo \"$f\"; done\n",
    "fn main() -> Result<(), Box<dyn Error>> { let v: Vec<u8> = vec![0u8; 16]; Ok(()) }",
    "x = x<<2 | ~y & 0xFF ^ 0b1010; // bits",
    "C:\\Users\\me\\file.txt  and  /usr/local/bin/x-1.2.3.tar.gz",
    "template <class T, class... A> auto g(T&& t, A&&... a) -> decltype(t(a...));",
    "\\begin{equation} e^{i\\pi} + 1 = 0 \\end{equation}",
    "user@example.com https://example.com/?q=a+b&c=%20d#frag",
    "@decorator\nclass A(B, metaclass=C):\n\n\n    pass\n\n",
    "let s = `a${b}c`; const r = /^\\d+\\s*$/gi;",
    "+-*/=<>!?&|^~%$#@:;,.()[]{}_`'\"\\",
]

PROSE = [
    "The quick brown fox jumps over the lazy dog.",
    "I'll say it's what they'd've done; we're sure you're right, I'm not. DON'T! I'LL, WE'RE, THEY'VE, HE'S, I'D, I'M",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Re 'rE 'x ''s '' ' it''s 'sister 'relic 'variant",
    "\u2019s it\u2019s o\u2019clock \u02bcs \uff07s '\u017f '\u212a",
    "Le c\u0153ur d\u00e9\u00e7u mais l'\u00e2me plut\u00f4t na\u00efve, Lou\u00ffs r\u00eava de crapa\u00fcter.",
    "Falsches \u00dcben von Xylophonmusik qu\u00e4lt jeden gr\u00f6\u00dferen Zwerg.",
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0444\u0440\u0430\u043d\u0446\u0443\u0437\u0441\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a.",
    "\u0393\u03b1\u03b6\u03ad\u03b5\u03c2 \u03ba\u03b1\u1f76 \u03bc\u03c5\u03c1\u03c4\u03b9\u1f72\u03c2 \u03b4\u1f72\u03bd \u03b8\u1f70 \u03b2\u03c1\u1ff6 \u03c0\u03b9\u1f70.",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u73a9\u5427\u3002\u4e00\u4e8c\u4e09\uff11\uff12\uff13\u3007",
    "\u3044\u308d\u306f\u306b\u307b\u3078\u3068 \u30a2\u30a4\u30a6\u30a8\u30aa\u30fc \uff71\uff72\uff73 \u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587\u3002",
    "\ud0a4\uc2a4\uc758 \uace0\uc720\uc870\uac74\uc740 \uc785\uc220\ub07c\ub9ac \ub9cc\ub098\uc57c \ud558\uace0 \u1112\u1161\u11ab",
    "\u0635\u0650\u0641 \u062e\u064e\u0644\u0642\u064e \u062e\u064e\u0648\u062f\u0650 \u0643\u064e\u0645\u0650\u062b\u0644\u0650 \u0661\u0662\u0663 \u06f4\u06f5\u06f6\u061f\u060c",
    "\u05d3\u05d2 \u05e1\u05e7\u05e8\u05df \u05e9\u05d8 \u05d1\u05d9\u05dd \u05de\u05d0\u05d5\u05db\u05d6\u05d1 \u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "\u090b\u0937\u093f\u092f\u094b\u0902 \u0915\u094b \u0938\u0924\u093e\u0928\u0947 \u0935\u093e\u0932\u0947 \u0967\u0968\u0969\u0964",
    "\u0e40\u0e1b\u0e47\u0e19\u0e21\u0e19\u0e38\u0e29\u0e22\u0e4c\u0e2a\u0e38\u0e14\u0e1b\u0e23\u0e30\u0e40\u0e2a\u0e23\u0e34\u0e10 \u0e51\u0e52\u0e53",
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0c24\u0c46\u0c32\u0c41\u0c17\u0c41 \u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u0540\u0561\u0575\u0565\u0580\u0565\u0576 \u1275\u130d\u122d\u129b \u1780\u17d2\u1798\u17c2",
    "Vi\u1ec7t Nam: ti\u1ebfng Vie\u0323\u0302t, e\u0301e\u0301e\u0301 Z\u0351\u036b\u0343a\u0334\u031fl\u0340go",
    "\u00bd \u2153 \u00b2\u00b3 \u2160\u2161\u2162 \u2460\u2461 \u3250 \u32b1 \u5341 \U0001d7d8\U0001d7d9 \u0bf0 \u2189",
    "\u2200x\u2208\u211d: \u2308x\u2309 = \u2212\u230a\u2212x\u230b, \u03b1 \u2227 \u00ac\u03b2 \u2260 \u221e; 3\u00d74\u00f72\u00b11 \u20ac5 \u00a36 \u00a57",
    "\u201cquotes\u201d \u2018single\u2019 \u2014 \u2013 \u2026 \u00ab\u00bb \u300c\u300d \u3010\u3011 \u00bf\u00a1 \u00a7 \u00b6 \u2020",
    "1234567890 3.14159 1,000,000 2024-01-31 12:34:56 +1 (555) 010-9999 0x1F 1e-9 v1.2.3 007",
    "a1b22c333d4444e55555 1a 22b 333c \u0661\u0662\u0663\u0664 \u0967\u0968\u0969\u096a\u096b \uff11\uff12\uff13\uff14",
]

EMOJI = [
    "\U0001f600\U0001f602\U0001f923", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd",
    "\U0001f1fa\U0001f1f8\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3 #\ufe0f\u20e3", "\u2764\ufe0f\u200d\U0001f525",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U0001f9d1\U0001f3ff\u200d\U0001f680",
    "\u263a \u2603\ufe0e \u2b50\ufe0f", "\U0001fae0\U0001faf6\U0001fad8", "ok\U0001f44cok", " \U0001f600 ", "\U0001f600\n\U0001f600",
]

SPACES = ["", " ", "  ", "   ", "    ", "\n", "\n\n", "\n\n\n", " \n", "\n ", "  \n  ", "\t", "\t\t", " \t ", "\r\n", "\r\n\r\n", "\r",
          " \r\n ", "\u00a0", " \u00a0", "\u3000", "\u2003\u2003", "\u1680", "\u2028", "\u2029\n", "\u0085", "\v\f", "\u180e",
          "\u200b", "\ufeff", "\u202f ", "\u205f\u205f", "\x1c\x1d", "\n \n \n", " \n\n\t\n ", "\t \n\r \t"]

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<jupyter_code>", "<unk>", "<tool>", "<|pad|>", "  \t",
            "<|im_end", "|im_end|>", "<<|im_end|>>", "<|im_start|><|im_end|>", "<|IM_END|>", "<tool", "<toolbox>"]

CHAT = [
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n<|im_end|>\n", "text <|endoftext|> more text<|endoftext|>", "a<tool>b<toolbox>c<unk>d<|pad|>  \te",
]


def assigned():
    """Code points that Unicode 14 assigns, by general category; no surrogates."""
    assert unicodedata.unidata_version == "14.0.0", "run this with a Python whose unicodedata is of version 14"
    groups = {}
    for c in range(0x110000):
        category = unicodedata.category(chr(c))
        if category not in ("Cn", "Cs") and not 0xF0000 <= c and (category != "Co" or c % 64 == 0):
            groups.setdefault(category, []).append(c)
    return groups


def random_strings(rng, count):
    groups = assigned()
    names = sorted(groups)
    for i in range(count):
        length = rng.randint(1, 14)
        if i % 3 == 0:  # of all code points
            yield "".join(chr(rng.choice(groups[rng.choice(names)])) for _ in range(length))
        elif i % 3 == 1:  # of two categories and spaces
            pool = [rng.choice(names), rng.choice(names)]
            yield "".join(rng.choice([" ", "\n", "'", "1", chr(rng.choice(groups[rng.choice(pool)]))]) for _ in range(length))
        else:  # of one block
            start = rng.choice(groups[rng.choice(names)])
            near = [c for c in range(start & ~63, (start & ~63) + 64) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
            yield "".join(chr(rng.choice(near)) for _ in range(length))


def strings():
    rng = random.Random(20)
    fixed = CODE + PROSE + EMOJI + SPACES + SPECIALS + CHAT
    out = list(fixed)
    out += [chr(c) for c in range(0x80)] + ["a" + chr(c) + "b" for c in range(0x80)]
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 100):
        out += [" " * n + "x", "x" + " " * n, "\n" * n + "x", "x" + "\n" * n, "7" * n, "x" + "7" * n, "a" * n, "!" * n, "\t" * n + ".",
                " \n" * n, "\u4e00" * n, "=" * n + "\n", "\U0001f600" * n, "'" * n + "s"]
    pieces = [w for text in CODE + PROSE for w in text.split(" ")] + EMOJI + SPACES * 2 + SPECIALS
    for _ in range(900):
        out.append("".join(rng.choice(pieces) + rng.choice(["", "", " ", "\n"]) for _ in range(rng.randint(1, 7))))
    for _ in range(150):  # a stretch of a text
        text = rng.choice(CODE + PROSE)
        start = rng.randrange(len(text))
        out.append(text[start:start + rng.randint(1, 40)])
    out += random_strings(rng, 1000)
    return list(dict.fromkeys(out))
