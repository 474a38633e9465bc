"""Words in the names of columns that say what a column holds."""

import re
import unicodedata

LABELS = (  # the strongest first
    *("label", "target", "y", "click", "clicked", "is_click", "is_clicked", "clk", "isclick", "ctr_label"),
    *("converted", "conversion", "is_conversion", "is_converted", "cvr_label", "purchased", "purchase", "bought"),
    *("is_purchase", "is_buy", "is_attributed", "is_installed", "installed", "response", "outcome", "class", "income"),
    *("survived", "churn", "churned", "exited", "default", "is_fraud", "fraud", "subscribed", "deposit", "is_like"),
    *("like", "liked", "positive", "engaged", "engagement", "feedback", "watched", "finished", "long_view"),
    *("effective",),
    *("result", "success", "is_positive", "relevance", "booked", "booking_bool", "click_bool", "labels", "targets"),
    *("klick", "geklickt", "angeklickt", "clic", "clique", "clicado", "cliqueado", "cliquee", "clicou", "点击"),
    *("是否点击",),
    *("gekauft", "kauf", "compra", "comprado", "comprou", "achat", "achete", "acquistato", "购买", "是否购买", "成交"),
    *("konversion", "conversao", "转化", "是否转化", "标签", "目标", "etiqueta", "rotulo", "etiquette", "ziel"),
    *("zielwert",),
    *("redeemed", "tapped", "opened", "responded", "accepted", "reordered", "returned", "repeat", "repeated"),
    *("cancelled",),
    *(
        "klikniecie",
        "klikniety",
        "tıklandı",
        "tiklandi",
        "tıklama",
        "kliknuto",
        "クリックされた",
        "클릭여부",
        "क्लिक",
        "نقر",
    ),
    *("resilie", "aangeklikt", "geklikt", "клик", "покупка", "κλικ", "αγορα", "retoure", "retourniert", "compro"),
    *("respuesta", "risposta", "antwort", "resposta", "kliknieto", "kliknięto", "clicou", "tiklama", "응답", "클릭함"),
    *(
        "getekend",
        "tetszett",
        "dat_mon",
        "đặt_mua",
        "klik",
        "diklik",
        "konversi",
        "reward",
        "αποδοχη",
        "inlost",
        "inlöst",
    ),
    *("prokliknuto", "objednano", "objednáno", "akceptace", "zaakceptowano", "kattintott", "klikannut", "klikkasi"),
    *("הקליק", "הגיש_מועמדות", "נרכש", "النقر", "تم_الشراء", "клікнув", "klickat", "köpt", "kopt", "kjopt", "kjøpt"),
    *("reklik", "abonniert", "gefallt", "gustado", "curtiu", "喜欢", "点赞", "クリック", "클릭"),
)
# what a user may do after (or beside) what is predicted, and so never known before
OUTCOMES = frozenset(
    (
        *("click", "clicked", "is_click", "is_clicked", "clk", "isclick", "converted", "conversion", "is_conversion"),
        *("is_converted", "purchased", "purchase", "bought", "is_purchase", "is_buy", "buy", "is_attributed"),
        *("is_installed", "installed", "install", "subscribed", "is_like", "like", "liked", "likes", "follow"),
        *("followed", "exposure", "exposed"),
        *("is_follow", "share", "shared", "is_share", "forward", "is_forward", "comment", "commented", "is_comment"),
        *("hate", "is_hate", "dislike", "disliked", "favorite", "favourite", "fav", "cart", "addtocart", "add_to_cart"),
        *("order", "ordered", "checkout", "booked", "booking_bool", "click_bool", "long_view", "is_profile_enter"),
        *("profile_enter", "watched", "finished", "finish", "complete", "completed", "read", "play", "played", "pay"),
        *("payment", "paid", "gross_bookings_usd", "transaction", "signup", "registered", "redeemed", "opened"),
        *("klick", "geklickt", "angeklickt", "clic", "clique", "clicado", "clicou", "点击", "是否点击", "gekauft"),
        *("kauf",),
        *("compra", "comprado", "comprou", "achat", "achete", "acquistato", "购买", "是否购买", "成交", "konversion"),
        *("konversi", "klik", "objednano", "inlost", "oppnat", "viewable", "visible", "add_to_wishlist", "wishlist"),
        *("conversao", "转化", "是否转化", "喜欢", "点赞", "收藏", "加购", "分享", "评论", "关注", "curtiu", "gefallt"),
    )
)
SPENT = frozenset(  # what an outcome took or brought
    (
        *("dwell_time", "dwell", "watch_time", "watching_times", "watch_ratio", "play_time", "play_duration"),
        *("view_time",),
        *("playing_time", "time_spent", "gross_bookings_usd", "成交金额", "停留时长", "观看时长", "播放时长"),
        *("verweildauer", "stay_time", "profile_stay_time", "comment_stay_time", "view_duration", "watch_duration"),
        *("tempo_permanenza", "tempo_di_permanenza", "temps_passe", "tiempo_permanencia", "tempo_leitura", "lesezeit"),
        *("percentuale_letta", "percent_read", "read_percent", "percent_watched", "completion", "completion_rate"),
        *(
            "helpful",
            "vote",
            "votes",
            "helpful_vote",
            "helpful_votes",
            "useful",
            "funny",
            "cool",
            "is_reviewed",
        ),  # votes on a review
    )
)
PREDICTIONS = (  # what another model says of the row
    *("pred", "preds", "prediction", "predictions", "predicted", "proba", "prob", "probability", "logit", "logits"),
    *("pctr", "pcvr", "ectr", "propensity", "vorhersage", "prediccion", "previsao", "prediction_score", "预测", "预估"),
)
MODELS = ("model", "ml", "ranker", "classifier", "modell", "modelo", "modele", "模型")  # whose score is a prediction
AMOUNTS = (  # numbers that people predict, the likeliest first
    *("sales", "saleprice", "sales_price", "revenue", "cnt", "demand", "unit_sales", "units_sold", "weekly_sales"),
    *("trip_duration", "item_cnt_day", "total_sales", "totals_revenue", "transaction_revenue"),
)
PERHAPS_AMOUNTS = ("price", "amount", "count", "duration")  # the same, only if nothing else can be the label
RATINGS = (
    "rating",
    "ratings",
    "rate",
    "score",
    "stars",
    "star",
    "overall",
    "star_rating",
    "book_rating",
    "grade",
    "vote",
    *("bewertung", "note", "puntuacion", "calificacion", "nota", "avaliacao", "valutazione", "评分", "打分"),
    *(
        "hodnocení",
        "ertekeles",
        "értékelés",
        "arvio",
        "arvosana",
        "betyg",
        "vurdering",
        "karakter",
        "оцінка",
        "đánh_giá",
    ),
    *("danh_gia", "diem", "penilaian", "nilai", "דירוג", "βαθμος"),
    *("評価", "평점", "puan", "ocena", "beoordeling", "hodnoceni", "оценка", "βαθμολογια", "التقييم", "تقييم", "रेटिंग"),
)
EVENTS = (
    "event",
    "event_type",
    "event_name",
    "action",
    "action_type",
    "behavior",
    "behaviour",
    "behavior_type",
    "type",
    "interaction_type",
    "interaction",
    "feedback_type",
    "activity_type",
)
EVENT_POSITIVES = (  # the rarest kind of event that a recommender is to predict, the strongest first
    *("purchase", "buy", "transaction", "order", "checkout", "conversion", "convert", "install", "subscribe", "book"),
    *(
        "clickout",
        "clickout_item",
        "addtocart",
        "add_to_cart",
        "cart",
        "fav",
        "click",
        "like",
        "play",
        "watch",
        "view",
        "pv",
    ),
)
WEIGHTS = ("weight", "sample_weight", "instance_weight", "weights", "importance", "wt", "fnlwgt")
USERS = (
    *("user", "customer", "client", "member", "visitor", "account", "reviewer", "buyer", "player", "person", "viewer"),
    *(
        "anonymousid",
        "profilename",
        "username",
        "nickname",
        "login",
        "elofizeto",
        "előfizető",
        "azonosito",
        "navstevnik",
    ),
    *(
        "zakaznik",
        "zákazník",
        "návštěvník",
        "kund",
        "kunde",
        "asiakas",
        "lainaaja",
        "khach_hang",
        "nguoi_dung",
        "pelanggan",
    ),
    *("pengguna", "клієнт", "користувач", "lurker", "lasare", "läsare", "bruger", "bruker", "anvandare", "användare"),
    *("cpf", "email", "phone", "msisdn", "ssn", "dni", "contact", "lead", "patron"),
    *("subscriber", "uid", "userid", "msno", "cookie", "fullvisitorid", "shopper", "guest", "consumer", "profile"),
    *("reader", "listener", "voter", "rater", "traveler", "traveller", "passenger", "patient", "student", "learner"),
    *("nutzer", "benutzer", "kunde", "kunden", "kundennummer", "mitglied", "besucher", "usuario", "cliente"),
    *("utilisateur",),
    *(
        "comprador",
        "utente",
        "klient",
        "gebruiker",
        "klant",
        "用户",
        "顾客",
        "客户",
        "会员",
        "会員",
        "买家",
        "ユーザー",
    ),
    *("顧客", "사용자", "고객", "musteri", "müşteri", "kullanıcı", "kullanici", "uzytkownik", "użytkownik"),
    *("пользователь", "клиент", "χρηστης", "πελατης", "المستخدم", "العميل", "ग्राहक", "उपयोगकर्ता"),
)
SESSIONS = ("session", "sessionid", "sitzung", "sesion", "sessao", "seance", "sessione", "会话", "セッション", "device")
ITEMS = (
    *("item", "movie", "product", "article", "news", "song", "track", "book", "app", "sku", "asin", "business"),
    *("video",),
    *("game", "anime", "isbn", "aid", "listing", "hotel", "restaurant", "recipe", "iid", "itemid", "movieid"),
    *("artist", "ad"),
    *("aid", "goods", "course", "post", "pin", "feed", "show", "creative", "offer", "coupon", "job", "document"),
    *("story",),
    *("film", "serie", "episode", "podcast", "album", "playlist", "poi", "venue", "content", "merchant", "vid", "pid"),
    *("tweet", "blog", "paper", "repo", "beer", "wine", "dish", "mid", "prop", "property", "objekt", "object"),
    *("anuncio",),
    *("artikel", "artikelnummer", "produkt", "lied", "buch", "filme", "articulo", "producto", "pelicula", "cancion"),
    *("libro", "produto", "artigo", "musica", "livro", "produit", "livre", "chanson", "prodotto", "articolo"),
    *("noticia",),
    *("商品", "物品", "产品", "电影", "视频", "文章", "新闻", "歌曲", "图书", "广告", "书籍", "商品番号", "映画"),
    *("곡", "노래", "영화", "책", "제품", "콘텐츠", "曲", "映画番号", "本", "ean", "gtin", "upc", "produtos"),
    *(
        "musor",
        "műsor",
        "termek",
        "termék",
        "zbozi",
        "zboží",
        "produktu",
        "vara",
        "vare",
        "teos",
        "kirja",
        "tuote",
        "san_pham",
    ),
    *("produk", "iklan", "kupon", "kuponger", "tilbud", "aanbod", "offerte", "товару", "kupong"),
    *("artykul", "artykuł", "towaru", "produktu", "товара", "продукт", "услуга"),
    *("상품", "urun", "ürün", "товар", "фильм", "προιον", "المنتج", "उत्पाद", "towar", "przedmiot"),
)
TIMES = (
    "timestamp",
    "time",
    "date",
    "datetime",
    "ts",
    "day",
    "hour",
    "created",
    "at",
    "when",
    "dt",
    "unixreviewtime",
    "occurred",
    *("zeit", "zeitstempel", "datum", "zeitpunkt", "fecha", "hora", "tempo", "data_hora", "heure", "momento", "marca"),
    *(
        "时间",
        "日期",
        "时间戳",
        "日時",
        "시간",
        "시각",
        "일시",
        "날짜",
        "日付",
        "дата",
        "время",
        "czas",
        "tarih",
        "tarihi",
    ),
    *("zaman", "tijd", "fec", "momento", "dzien", "dt_hora"),
)
BIRTHS = (
    *("birth", "birthday", "birthdate", "dob", "born", "geburtsdatum", "geburtstag", "naissance", "nacimiento"),
    *(
        "nascimento",
        "nascita",
        "urodzenia",
        "dogum",
        "doğum",
        "geboortedatum",
        "рождения",
        "出生",
        "生日",
        "出生日期",
        "생년월일",
    ),
)
CODES = (  # whole numbers under such a name are codes, not quantities
    *("id", "code", "type", "category", "cat", "zip", "zipcode", "postcode", "class", "group", "segment", "status"),
    *("flag", "is", "has", "region", "recode", "brand", "level", "channel", "cluster", "hash", "key", "index", "idx"),
    *("banner",),
)
RANGES = (  # last words of numbers of ranges, such as age_band
    *("range", "band", "bucket", "bracket", "bin", "tier", "decile", "quartile", "group", "level", "class", "code"),
)
QUANTITIES = (
    *("age", "count", "cnt", "num", "number", "amount", "price", "cost", "hours", "hrs", "weeks", "days", "minutes"),
    *("seconds", "duration", "length", "size", "total", "sum", "avg", "mean", "max", "min", "ratio", "rate", "score"),
    *("wage", "salary", "gain", "gains", "loss", "losses", "quantity", "qty", "distance", "views", "clicks", "revenue"),
    *("edad", "alter", "idade", "eta", "wiek", "возраст", "yas", "yaş", "年齢", "나이", "leeftijd", "ikä"),
    *("budget", "votes", "balance", "income", "percent", "pct", "worked", "popularity", "temperature", "year"),
)


ID_WORDS = frozenset(  # that say that a column identifies something
    (
        *(
            "id",
            "ids",
            "key",
            "code",
            "cod",
            "codigo",
            "kod",
            "kodu",
            "sku",
            "nr",
            "no",
            "num",
            "numero",
            "number",
            "hash",
        ),
        *(
            "azonosito",
            "azonosító",
            "identifikator",
            "tunnus",
            "tunniste",
            "koodi",
            "kode",
            "kodi",
            "ref",
            "nummer",
            "ma",
        ),
        *("編号", "编号", "번호", "numara", "numarası", "معرف", "رقم", "מזהה", "κωδικος", "kód"),
    )
)


def words(name: str) -> list[str]:
    """Return the words of a column's name in small letters: userId, user_id and user-id:token are user, id."""
    name = re.sub(r":(token|float|token_seq|float_seq)$", "", name.strip())  # RecBole's types
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    letters = (c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in ascii_letters(name))
    return "".join(letters).split()


def ascii_letters(name: str) -> str:
    """Return a name in small letters without accents: Artículo is articulo. Other alphabets keep their marks."""
    letters = unicodedata.normalize("NFKD", name.lower())
    return unicodedata.normalize("NFC", "".join(c for c in letters if not "\u0300" <= c < "\u0370"))


def plain(name: str) -> str:
    """Return the words joined by underscores."""
    return "_".join(words(name))


def rank_of(name: str, among: tuple[str, ...]) -> int | None:
    """Return the place of a column's name among known names, None if it is not one of them."""
    own = plain(name)
    for form in (own, own.replace("_", ""), own.removeprefix("is_"), own.removesuffix("_flag")):
        if form in among:
            return among.index(form)
    return None


def has_word(name: str, among: tuple[str, ...]) -> bool:
    """Return True if one of the words of a column's name is among the known ones."""
    return any(w in among for w in [*words(name), plain(name), plain(name).replace("_", "")])


def names_an_id_of(name: str, among: tuple[str, ...]) -> bool:
    """Return True for user, user_id, userId, uid, reviewerID and the like, but not for user_age."""
    own = words(name)
    about = {"parent", "hashed", "index", "idx", "name", "the", "target", "buying", "pseudo", "ean", "unique"}
    about |= {"anon", "anonymous", "sha", "md5", "नंबर", "आईडी"}
    rest = [w for w in own if w not in ID_WORDS and w not in about]
    joined = "".join(own)
    ends = {
        joined.removesuffix(end)
        for end in ("id", "nr", "no", "nummer", "number", "编号", "番号", "번호", "code", "コード")
    }
    return (len(rest) == 1 and rest[0] in among and len(own) <= 3) or joined in among or bool(ends & set(among))


STATUSES = (  # columns of a few states, one or more of which may be the label
    *("status", "state", "stage", "result", "outcome", "disposition", "resolution", "статус", "результат", "durum"),
    *(
        "resultado",
        "estado",
        "ergebnis",
        "wynik",
        "stan",
        "statut",
        "resultat",
        "stato",
        "esito",
        "状態",
        "结果",
        "状态",
    ),
    *("상태", "결과", "sonuc", "sonuç", "situacao", "situação"),
)
REFUSALS = (  # yes to these says that the user does not want the item
    *("skip", "skipped", "is_skip", "dislike", "disliked", "hate", "hide", "hidden", "block", "blocked", "report"),
    *("reported", "bounce", "bounced", "is_hate", "건너뜀", "跳过", "スキップ", "ubersprungen", "omitido"),
)
CONTEXT = (  # words of yes and no that are known before a row's outcome
    *("mobile", "app", "promo", "promotion", "promoted", "discount", "discounted", "sale", "weekend", "holiday", "new"),
    *("first", "premium", "prime", "member", "push", "organic", "sponsored", "top", "verified", "free", "shipping"),
    *("available", "stock", "login", "logged", "registered", "subscriber", "vip", "express", "gift", "night", "day"),
    *("weekday", "morning", "evening", "ad", "ads", "banner", "notification", "festival", "workday", "returning"),
    *("known", "cookie", "consent", "wifi", "android", "ios", "web", "desktop", "tablet", "live", "local", "remote"),
    *("international", "domestic", "random", "test", "bot", "cold", "warm", "start", "default", "active", "adult"),
)
AFTER = (  # words of what is known after an outcome: how and when a matter was closed, what was paid back
    *(
        "resolution",
        "resolved",
        "closing",
        "closed",
        "handling",
        "rozwiazania",
        "rozwiązania",
        "rozwiązano",
        "закрытия",
    ),
    *(
        "решения",
        "cozum",
        "çözüm",
        "kapanis",
        "kapanış",
        "losung",
        "lösung",
        "bearbeitungszeit",
        "resolucao",
        "resolucion",
    ),
    *("cierre", "chiusura", "fermeture", "refund", "refunded", "iade", "erstattung", "erstattungsbetrag", "reembolso"),
    *("возврата", "zwrot", "zwrotu", "remboursement", "rimborso", "abgemeldet", "unsubscribed", "contratado"),
)
REASONS = ("reason", "grund", "motivo", "причина", "przyczyna", "neden", "nedeni", "raison", "reden", "理由", "원인")
WATCHED = (  # verbs of what a user does for a while
    *(
        "watch",
        "watched",
        "watching",
        "viewed",
        "view",
        "listened",
        "listen",
        "played",
        "play",
        "read",
        "dwell",
        "stay",
    ),
    *("nezett", "nézett", "gesehen", "visto", "vue", "visionne", "ogladania", "katsottu", "sett"),
)
LASTING = (  # units of it
    *("seconds", "sec", "secs", "minutes", "min", "mins", "ms", "millis", "time", "duration", "perc", "percent"),
    *("ratio", "share", "sekunden", "minuten", "minutos", "segundos", "minuty", "sekundy", "minuuttia", "length"),
)
SURVEYS = ("csat", "nps", "satisfaction", "zufriedenheit", "satisfaccion", "satisfacao", "survey", "umfrage", "anketa")

KNOWN = frozenset({*LABELS, *RATINGS, *EVENTS, *WEIGHTS, *USERS, *ITEMS, *TIMES, *CODES, *QUANTITIES, *SESSIONS})
