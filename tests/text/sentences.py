"""Sentences for tests of tokenizers, in many languages and scripts, and text that is difficult to normalise."""

from tests.support.corpus import sentence_pairs

LANGUAGES = [
    "The library closes at six, so we shouldn't be late: it's already 5:40 p.m.",
    "Die Straße vor unserem Haus ist größer als früher, aber längst nicht schön.",
    "L'été dernier, ma sœur a déjà dîné près de la gare où j'habitais.",
    "¿Dónde está el niño que cantó mañana por la mañana? ¡Qué vergüenza!",
    "Þetta er ósköp venjulegur dagur á Íslandi, sagði gamli maðurinn.",
    "Šiandien už lango žiūriu į ąžuolą ir ėdu šaltibarščius.",
    "Zażółć gęślą jaźń, a potem zjedz pączka ze świeżą śmietaną.",
    "Árvíztűrő tükörfúrógép került az asztalra, pedig nem kértük.",
    "Güneşli bir günde İstanbul'da ışıklı vapurlara bindik, çok iğreti.",
    "Tiếng Việt có nhiều dấu: người ta nghĩ rằng nó khó đọc lắm.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ο γρήγορος σκύλος πηδάει πάνω από την ψηλή πόρτα της αυλής.",
    "Այսօր եղանակը շատ գեղեցիկ է, և մենք գնում ենք այգի։",
    "დღეს კარგი ამინდია და ბავშვები ეზოში თამაშობენ.",
    "הספר הזה נמצא על השולחן, אבל אף אחד לא קרא אותו.",
    "يقرأ الطالب كتابًا جديدًا في المكتبة كل يوم.",
    "मैं हर दिन सुबह पढ़ता हूँ और फिर बाज़ार जाता हूँ।",
    "நான் தினமும் காலையில் புத்தகம் படிக்கிறேன்.",
    "ฉันอ่านหนังสือทุกเช้าก่อนไปทำงานที่กรุงเทพฯ",
    "ကျွန်တော် နေ့တိုင်း စာအုပ် ဖတ်ပါတယ်။",
    "ខ្ញុំអានសៀវភៅរាល់ព្រឹក។",
    "እኔ በየቀኑ ጠዋት መጽሐፍ አነባለሁ።",
    "오늘은 날씨가 좋아서 친구와 함께 공원에 갔습니다.",
    "今日は天気がいいので、友達とカフェでコーヒーを飲みました。",
    "今天天气很好，我和朋友们去公园散步了。",
    "Mo ń ka ìwé ní gbogbo òwúrọ̀ kí n tó lọ síbi iṣẹ́.",
]
# Marks in the order of typing, which differs from that of Unicode's normal forms.
MARKED = [
    "\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f\u064c \u062c\u064e\u064a\u0651\u0650\u062f\u064c",
    "\u05e9\u05c1\u05bc\u05b8\u05dc\u05d5\u05b9\u05dd \u05d1\u05bc\u05b7\u05d9\u05b4\u05ea",
    "\u1000\u103b\u103d\u1014\u103a\u1037 \u1010\u102d\u102f\u1037",
    "ti\u00ea\u0301ng, ng\u01b0\u01a1\u0300i, m\u00e2\u0303u, n\u01b0\u0309a, \u00d4\u0323",
]
ODD = [
    "",
    " ",
    "   \t ",
    "\n",
    "  two  spaces\tand a tab \r\n and lines\n",
    "no\u00a0break\u3000wide\u2009thin\u200bzero\u2028line\ufeff",
    "e\u0301te\u0301 nai\u0308f A\u030angstro\u0308m",
    "ﬁne ﬂuﬀ ½ ² № ™ Ⅷ ﷺ",
    "ＦＵＬＬ　ｗｉｄｔｈ ～ ｶﾞｷﾞｸﾞ ﾊﾟﾋﾟ",
    "emoji 😀 👍🏽 👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f done",
    "unknown \ue000\ue001 𓀀𓀁 x𓀀y 龘龘",
    "▁under ▁ bar▁",
    "control \x07\x00 characters \x7f",
    "İstanbul ẞ ß ﬆ ǅ ſ",
    "https://example.org/a_b?c=1&d=%20 <b>bold</b> 1.000,50 € #tag @you",
    "aaaaa-bbbbb " * 30,
]
SPELLED = [
    "<s> <pad> </s> <unk> <mask>",
    "a<mask>b <mask>c",
    "[CLS] [SEP] [PAD] [UNK] [MASK] x[MASK]y",
    "<0x41><0xE2><0x96><0x81>",
    "< s> <mask <s",
]
TEXT = [sentence for pair in sentence_pairs(150) for sentence in pair] + LANGUAGES * 3
"""The text that the small tokenizers of the tests are trained on."""
