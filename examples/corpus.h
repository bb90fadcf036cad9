/* corpus.h - the text that the examples learn from, and how text becomes tokens

   Little stories, made here from a seed, about animals who lose things, keep promises and
   carry messages.  Every story states facts (who, where, which colour, how many, which word)
   and asks for them again later, with other sentences in between: a model that attends can
   look back for the answer, one that does not must guess.  Facts are drawn anew for each
   story, so that they cannot be learnt by heart.

       char *text = corpus_stories(seed, 400000, &bytes);          text, free() it

       corpus_tokens data;                                         tokens for training
       corpus_open(&data);                     as --data, --tokenizer and --out say
       corpus_need(&data, context);            or one sentence: too short                  */
#ifndef CORPUS_H
#define CORPUS_H
#include "cli.h"

/* ---- words ------------------------------------------------------------------------------ */

static const char *const corpus_she[] = {
    "Ada", "Anouk", "Bea", "Birdie", "Clara", "Dot", "Edda", "Elin", "Fern", "Greta", "Hazel", "Ida", "Ilse", "Juna",
    "Kit", "Lotte", "Mabel", "Mina", "Nell", "Nora", "Olive", "Pia", "Quilla", "Rosa", "Runa", "Sanna", "Tilda", "Una",
    "Vera", "Wren", "Yara", "Zora" };
static const char *const corpus_he[] = {
    "Abel", "Anton", "Basil", "Bram", "Caspar", "Dov", "Edgar", "Emil", "Finn", "Gus", "Hugo", "Ivo", "Jasper", "Jonah",
    "Karl", "Leo", "Milo", "Moss", "Ned", "Nils", "Otto", "Pip", "Quentin", "Rolf", "Rufus", "Sam", "Tobias", "Ulf",
    "Viktor", "Wim", "Yorick", "Zeno" };
static const char *const corpus_kinds[] = {
    "badger", "beaver", "bear", "crow", "dormouse", "duck", "fox", "frog", "goat", "goose", "hare", "hedgehog", "heron",
    "lamb", "lizard", "magpie", "marten", "mole", "mouse", "newt", "otter", "owl", "pony", "rabbit", "raven", "robin",
    "shrew", "snail", "sparrow", "squirrel", "stoat", "swan", "toad", "tortoise", "vole", "weasel" };
static const char *const corpus_colours[] = {
    "red", "blue", "green", "yellow", "white", "black", "brown", "grey", "purple", "orange", "silver", "golden", "pink", "striped" };
static const char *const corpus_things[] = {
    "kettle", "bell", "lantern", "umbrella", "button", "marble", "whistle", "scarf", "teapot", "ribbon", "fiddle", "drum",
    "key", "map", "compass", "boot", "hat", "kite", "basket", "candle", "spoon", "ladder", "mitten", "telescope", "pebble",
    "feather", "wheelbarrow", "flute", "mirror", "clock", "blanket", "bucket", "needle", "acorn cup", "music box", "cookbook" };
static const char *const corpus_places[] = {
    "under the old bridge", "behind the mill", "in the hollow oak", "beside the duck pond", "on the church roof",
    "in the blackberry hedge", "under the third stair", "at the bottom of the well", "behind the bakery", "in the hay loft",
    "on top of Windy Hill", "in the boat shed", "between two haystacks", "beneath the willow", "inside the broken piano",
    "by the garden gate", "in the baker's oven", "on the highest shelf", "in the apple cellar", "under a heap of leaves",
    "behind the waterfall", "at the crossroads", "in the lighthouse", "under the ferryman's bench", "in the bell tower",
    "among the pumpkins", "beside the frozen stream", "in the tailor's window", "under the blue tent", "behind the moon gate" };
static const char *const corpus_foods[] = {
    "plum cake", "pea soup", "walnut bread", "honey", "apple pie", "cheese", "blackberry jam", "oat porridge", "carrot stew",
    "ginger biscuits", "pancakes", "roast chestnuts", "rhubarb tart", "mushroom pie", "elderflower juice", "barley soup",
    "cherry dumplings", "toast with butter", "pear crumble", "mint tea" };
static const char *const corpus_goods[] = {          /* what can be counted */
    "buns", "eggs", "pears", "biscuits", "dumplings", "chestnuts", "candles", "tarts", "turnips", "plums", "pancakes", "muffins" };
static const char *const corpus_numbers[] = {
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve" };
static const char *const corpus_secrets[] = {
    "bramble", "thistledown", "marzipan", "pickle", "moonbeam", "rumpus", "buttercup", "hullabaloo", "custard", "starling",
    "gooseberry", "cobweb", "whirligig", "turnip", "periwinkle", "humbug", "nutmeg", "velvet", "popcorn", "snowdrop" };
static const char *const corpus_messages[] = {
    "the bridge is mended", "the soup is on the stove", "the geese are back", "the baby sleeps at last", "the ferry leaves at noon",
    "the bees have a new queen", "the mill has stopped", "there will be frost tonight", "the apples are ripe",
    "the roof does not leak any more", "the fiddler is coming", "the boat is painted", "the first snowdrop is out",
    "the clock runs backwards", "the cheese is ready", "school begins on Tuesday" };
static const char *const corpus_days[] = { "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday" };
static const char *const corpus_elders[] = {
    "Grandmother Thorn", "Uncle Barnaby", "Old Mother Reed", "Captain Brook", "Aunt Clover", "Doctor Ash", "the widow Finch",
    "Mister Pepper", "the miller", "the ferryman", "Miss Nettle", "Judge Burr" };
static const char *const corpus_moods[] = {
    "curious", "stubborn", "gentle", "sleepy", "brave", "shy", "cheerful", "hungry", "careful", "forgetful", "proud", "patient" };

/* ---- stories --------------------------------------------------------------------------------
   A beat is a choice of sentences; a story is a row of beats.  In a sentence,
     [a|b|c]  one of these, may be nested
     {N}      a fact of this story; {@K} with its article, {^P} with a capital
   N hero  K kind  M friend  J kind  T thing  C colour  G second thing  E its colour
   P place  Q other place  F food  L other food  S secret word  Y message  D day  O elder  B mood
   W number  V a part of it  U what is left  X goods    h/H he or she  s his or her  i him or her */

static const char *const corpus_lost[][6] = {
    { "{N} was {@B} {K} who owned one fine thing, {@C} {T}.",
      "Once there was {@K} called {N}. {H} had {@C} {T}, and [nothing in the world was dearer to {i}|{h} took it everywhere|{h} polished it every {D}].",
      "Everyone in the village knew {N} the {K} and {s} {C} {T}.",
      "On {s} birthday {N} the {K} was given {@C} {T} by {O}." },
    { "One {D} the {T} was gone. {N} looked [in every drawer|under the bed|behind the stove], and it was not there.",
      "Then, on a [windy|foggy|rainy|bright] {D}, {h} reached for it and found nothing.",
      "But one morning the shelf was empty. \"My {T}!\" cried {N}. \"My {C} {T}!\"" },
    { "{H} asked {M} the {J}, who was eating {F}. \"I have not seen it,\" said {M}, \"but I [heard something clink|saw a shadow] {P}.\"",
      "{M} the {J} put down a bowl of {F} and thought. \"Did you not [sit|nap|sing] {P} yesterday?\" asked {M}.",
      "\"Think,\" said {M} the {J}, who always had some {F} to share. \"Where were you last?\" \"I was {P},\" said {N} slowly." },
    { "So they went out together. [The rain had stopped.|The wind pulled at their ears.|A thin moon was up.|The road was full of puddles.]",
      "They shared the {F} and set off. [It was a long way.|Nobody spoke.|{M} hummed a little tune.]",
      "First they looked {Q}, but there was only [a cold toad|an old newspaper|a smell of moss]." },
    { "And there, {P}, lay the {T}, as {C} as ever.",
      "{^P} something shone. It was {C}. It was the {T}!",
      "They searched {P}, and {M} was the first to see it: {@C} {T}, [a little wet|full of sand|none the worse]." },
    { "\"You found my {T},\" said {N}, \"so tonight you shall have all the {F} you can eat.\" And {M} did.",
      "{N} hugged {M} and then the {T}. \"I will never again leave it {P},\" {h} said. [And {h} never did.|But {h} did, the very next {D}.]",
      "Ever since, when people ask where {N} lost the {C} {T}, {M} laughs and says: \"{^P}, of course.\"",
      "Now the {T} hangs on a string around the neck of {N}, and the {J} called {M} is {s} best friend." },
    { NULL } };

static const char *const corpus_promise[][6] = {
    { "{N} the {K} once made a promise. \"{M},\" {h} said, \"on {D} I will bring you some {F}.\"",
      "\"Will you come to tea on {D}?\" {M} the {J} asked. \"Gladly,\" said {N} the {K}, \"and I will bring {F}.\"",
      "{M} the {J} was ill in bed, and all {M} wanted was {F}. \"You shall have it by {D},\" {N} the {K} promised." },
    { "But the days went by, and {N} was {B}, and there was so much to do.",
      "Now {N} was {@B} {K}, and promises are easy to make.",
      "{N} tied a knot in {s} {C} handkerchief so as not to forget." },
    { "First {O} came and asked for help with a {T}. Then there was {L} to cook.",
      "On the way to market {h} met {O}, who wanted to talk about {L} for an hour.",
      "Somebody had left {@C} {T} {P}, and everybody had to go and look at it." },
    { "On {D} {h} woke with a start. What was it? Somebody, something, to eat. Not {L}. No.",
      "When {D} came, {N} sat by the window and wondered what {h} had forgotten.",
      "\"What day is it?\" asked {N}. \"{D},\" said {O}. \"Oh!\" said {N}." },
    { "\"{M}!\" {h} shouted. \"{M} is waiting for the {F}!\"",
      "\"{F}!\" {h} cried, so loudly that {O} dropped a spoon. \"I promised {F} to {M}!\"",
      "Then {h} looked at the {C} sky and remembered: it was {F}, and it was for {M}." },
    { "{H} ran all the way [{P}|through the wood|along the river], with a warm dish under {s} arm.",
      "Quick as a {J}, {h} filled a basket and ran.",
      "There was just time. {H} took the short way, {P}." },
    { "{M} opened the door and smelled {F}. \"You remembered,\" said {M}.",
      "\"It is {D},\" said {M} the {J}, \"and here is my {F}. You are a good {K}, {N}.\"",
      "And when {M} had eaten every crumb of the {F}, {N} promised to come again next {D}." },
    { NULL } };

static const char *const corpus_letter[][6] = {
    { "\"Run to {O},\" said {M} the {J}, \"and say: {Y}.\" So {N} the {K} ran.",
      "{N} the {K} was the fastest in the village, so {M} the {J} sent {i} to {O} with a message: {Y}.",
      "There was no post on {D}, and so {N}, {@B} {K}, had to carry the news {i}self. The news was this: {Y}." },
    { "\"{^Y},\" {h} said to {i}self at every step. \"{^Y}.\"",
      "All the way {h} sang it softly: \"{Y}, {Y}.\"",
      "{H} wrote it on {s} paw, but the rain washed it off." },
    { "{^P} {h} met a stranger with {@C} {T}. \"Would you like to [hold|buy|try] it?\" asked the stranger.",
      "A smell of {F} came over the hedge. {N} stopped. {N} sniffed. {N} went on.",
      "{^P} there was a puddle, and in the puddle swam {@C} {T}. How strange!" },
    { "\"No, thank you,\" said {N}. \"I have a message, and if I stop I shall lose it.\"",
      "For a moment every word had flown out of {s} head. {H} stood still and waited for them to come home.",
      "\"Later,\" said {N}, and {s} feet went faster." },
    { "At last {O} opened the door. \"Well?\" \"{^Y},\" said {N} the {K}, out of breath.",
      "\"Who sends you?\" asked {O}. \"{M} the {J},\" said {N}. \"And what does {M} say?\" \"{^Y}.\"",
      "{O} was sitting by the fire. \"{M} sends me,\" said {N}, \"to tell you that {Y}.\"" },
    { "\"So, {Y}!\" said {O}. \"That is the best news since {D}. Sit down and have some {F}.\"",
      "{O} smiled and gave {i} {F} for the way home. [It was gone before the gate.|{H} kept half of it for {M}.]",
      "\"Thank you, {N},\" said {O}. \"Go back to {M} and say that I will come on {D}.\" And off {h} ran again." },
    { NULL } };

static const char *const corpus_count[][6] = {
    { "{N} the {K} baked all {D} long, and in the evening there were {W} {X} on the table.",
      "\"{^W} {X},\" counted {N} the {K}, \"and all of them for the feast on {D}.\"",
      "In the pantry of {N} the {K} there were {W} {X}, not one more and not one less." },
    { "{H} put them {P} to keep cool and went to bed.",
      "{H} covered them with {@C} cloth and went out to feed the hens.",
      "Then {O} called from the road, and {N} left them alone for a minute." },
    { "Along came {M} the {J}, who was always hungry. {V} of them went down without a sound.",
      "{M} the {J} came by, saw them, and ate {V}. \"Only {V},\" said {M}.",
      "When nobody was looking, {M} the {J} took {V} away in {@C} {T}." },
    { "{N} counted again. {^U} left! \"There were {W},\" {h} said. \"Somebody has had {V}.\"",
      "\"{^W} I made and {U} I see,\" said {N}. \"So {V} have grown legs.\"",
      "Now there were {U}. {N} counted them twice, forwards and backwards, and there were still {U}." },
    { "\"{M},\" said {N}, \"there is [sugar|flour|butter] on your nose.\" \"It was {V},\" whispered {M}, \"and they were very good.\"",
      "{M} turned as red as a {J} can. \"It was me,\" said {M}. \"{V} of the {X}. I am sorry.\"" ,
      "\"Was it you, {M}?\" asked {N}. The {J} looked at the floor, and the floor looked back." },
    { "So {M} washed the dishes, and they ate the other {U} together.",
      "\"Then bake {V} more with me,\" said {N}, and soon there were {W} {X} again.",
      "\"Friends may take {V},\" said {N}, \"if they ask.\" And {M} asked for one of the {U}." },
    { NULL } };

static const char *const corpus_secret[][6] = {
    { "{N} the {K} was afraid of the dark. \"I know a word against it,\" said {M} the {J}. \"The word is {S}.\"",
      "There is a door {P} that opens only to a word. {M} the {J} told the word to {N} the {K}, very quietly: \"{^S}.\"",
      "\"If you are ever lost,\" said {M} the {J}, \"say {S}, and I will hear you.\" {N} the {K} said it three times to learn it." },
    { "\"{^S},\" said {N}. \"What a silly word.\" \"Silly words work best,\" said {M}.",
      "{N} laughed. Who had ever heard of a word like {S}?",
      "\"Tell it to nobody,\" said {M}, \"not even to {O}.\" And {N} did not." },
    { "Weeks went by. There was {F} to eat and {@C} {T} to mend, and nobody thought of it.",
      "Summer came, and the {C} [flowers|boats|flags] came out {Q}.",
      "Then came the longest night of the year, and snow, and more snow." },
    { "One {D} evening {N} was {P} when the lamp went out. It was so dark that {h} could not see {s} own feet.",
      "One {D} {N} took a wrong turn {P}, and every tree looked like every other tree.",
      "And then, {P}, something [rustled|growled|sighed] behind {i}." },
    { "{N} shut {s} eyes and tried to remember. {H} took a deep breath. \"{^S}!\"",
      "What was the word of {M}? {N} thought hard. \"{^S},\" {h} whispered. \"{^S}!\"",
      "\"{^S}!\" shouted {N}. \"{^S}, {S}, {S}!\"" },
    { "And a voice answered. \"I am here,\" said {M} the {J}, and lit {@E} lantern.",
      "The dark took one step back. \"{^S}?\" it said. \"Then you must be a friend of {M}.\"",
      "At once a light came on, {E} and warm, and there stood {M} with {@E} candle." },
    { "They walked home and had {F}. [Nobody was afraid at all.|And the dark came too, and sat in the corner.]",
      "\"What did I tell you?\" said {M}. \"It is a good word, {S}.\"",
      "{N} has never told anyone the word. But you know it: it is {S}." },
    { NULL } };

static const char *const corpus_market[][6] = {
    { "{N} the {K} went to market with {@C} {T}. {M} the {J} came with {@E} {G}.",
      "It was market day. {N} the {K} carried {@C} {T} under {s} arm, and {M} the {J} pushed {@E} {G} along the road.",
      "\"What have you got?\" asked {M} the {J}, who had {@E} {G}. \"{@C} {T},\" said {N} the {K}." },
    { "\"Nobody wants {@C} {T},\" said {O}. \"Have you no {F}?\"",
      "They stood there all morning, and [the sun moved|the shadows moved|only the flies came].",
      "{O} looked at the {T}, and then at the {G}, and bought {L} instead." },
    { "\"Your {G} is beautiful,\" said {N}. \"So is your {T},\" said {M}. They looked at each other.",
      "\"I have always wanted {@G},\" {N} said at last. \"And I {@T},\" said {M}.",
      "\"Shall we swap?\" asked {N}. {M} thought about it for as long as it takes to eat some {F}." },
    { "So {M} took the {C} {T}, and {N} took the {E} {G}.",
      "They shook paws. The {T} went to {M}, and the {G} went to {N}.",
      "And that was that: {@E} {G} for {@C} {T}." },
    { "\"What did you get for your {T}?\" asked {O} at home. \"A {G},\" said {N}. \"And it is {E}.\"",
      "{M} walked home with the {T} and showed it to everyone. \"It is {C}, you see,\" said {M}.",
      "In the evening {N} put the {G} [on the table|by the window|beside {s} bed]. It was very {E} indeed." },
    { "The next {D} they met again {P}. \"May I see the {T}?\" asked {N}. \"Only if I may see the {G},\" said {M}.",
      "And if you ever meet {M} the {J}, ask about the {C} {T} and about {N}.",
      "Now they are neighbours, and the {T} of {M} and the {G} of {N} stand in two windows, {C} and {E}." },
    { NULL } };

static const char *const corpus_school[][6] = {
    { "In the school {P} the teacher was {O}. {N} the {K} sat in front, and {M} the {J} sat by the window.",
      "{O} came into the class on {D}. \"Today,\" said {O}, \"we practise remembering.\"" },
    { "{N} had {F} in a box, and {M} had {L}.",
      "{N} liked {F} best of all. {M} liked {L}." },
    { "On the desk of {N} lay {@C} {T}, and on the desk of {M} {@E} {G}.",
      "{N} drew {@C} {T}. {M} drew {@E} {G}." },
    { "\"Close your eyes,\" said {O}. \"{M}, what does {N} like to eat?\" \"{^F},\" said {M}.",
      "\"Who can tell me what {M} has for lunch?\" asked {O}. \"{^L}!\" cried {N}. \"I can smell it.\"",
      "\"What is in the box of {N}?\" asked {O}. \"{^F},\" everybody said." },
    { "\"And which colour is the {T}?\" \"{^C}.\" \"And the {G}?\" \"{^E},\" said {N}.",
      "\"Whose is the {G}?\" \"It belongs to {M},\" said {N}. \"And whose is the {T}?\" \"Mine.\"",
      "\"The {T} is {C},\" said {M}, \"and the {G} is {E}, and I am hungry.\"" },
    { "\"Very good,\" said {O}. \"One last question. What kind of animal is {N}?\" \"{@K}!\" they all shouted.",
      "\"And what are you, {M}?\" \"{@J},\" said {M}, \"and {N} is {@K}.\"",
      "Then the bell rang, and {N} swapped the {F} for the {L} of {M}." },
    { NULL } };

static const char *const corpus_note[][6] = {
    { "Dear {M}, I am writing to you from a bench {P}.",
      "Dear {M}, thank you for the {C} {T}. It came on {D}.",
      "Dear {M}, today is {D}, and I have eaten nothing but {F}." },
    { "It is [cold|quiet|sunny|very late] here. {O} sends greetings.",
      "Do you still live {Q}? I think of you when I see {@J}.",
      "I have a new friend, {@B} {K}, and a new {G}. It is {E}." },
    { "Please bring the {T} when you come. You know the one: it is {C}.",
      "When you come, bring {L}. And do not tell {O}.",
      "If you want to find me, look {P}." },
    { "I must stop now, for the {F} is getting cold.", "More on {D}. The candle is nearly gone.", "Write soon, and tell me everything." },
    { "Your {N}, the {K}.", "With love from {N}.", "Yours, {N} (the {K} {P})." },
    { "P.S. Do not forget the {T}.", "P.S. It really was {F}, and really on {D}.", "P.S. {O} says that {J}s never answer letters. Is it true, {M}?" },
    { NULL } };

typedef const char *const (*corpus_plot)[6];
static const struct { corpus_plot beats; const char *titles[4]; } corpus_plots[] = {
    { corpus_lost, { "The Lost {^T}", "Where Is My {^T}?", "{N} and the {^C} {^T}", "{^P}" } },
    { corpus_promise, { "A Promise", "What {N} Forgot", "{^F} for {M}", "{N} and {M}" } },
    { corpus_letter, { "The Message", "{N} Runs", "News for {O}", "{^Y}" } },
    { corpus_count, { "{^W} {^X}", "Who Ate the {^X}?", "The Hungry {^J}", "{N} Counts" } },
    { corpus_secret, { "The Secret Word", "{N} in the Dark", "{^S}", "What {M} Knew" } },
    { corpus_market, { "Market Day", "A Fair Swap", "{@C} {T} for {@E} {G}", "Two Windows" } },
    { corpus_school, { "A Lesson", "The School {P}", "{O} Asks", "Remembering" } },
    { corpus_note, { "A Letter to {M}", "A Letter, {P}", "Dear {M}", "A Letter from {N}" } } };

/* ---- the generator ------------------------------------------------------------------------- */

typedef struct corpus_maker {
    gpts_rng rng;
    const char *fact[128];                  /* by the letters above                       */
    char *text; size_t size, room;
} corpus_maker;

static inline size_t corpus_draw(corpus_maker *m, size_t n) { return (size_t)gpts_rng_below(&m->rng, n); }
#define CORPUS_PICK(m, list) ((list)[corpus_draw((m), sizeof (list) / sizeof *(list))])

static inline void corpus_put(corpus_maker *m, const char *text, size_t n)
{
    if (m->size + n + 1 > m->room) {
        m->room = 2 * (m->size + n + 1);
        m->text = (char *)realloc(m->text, m->room);
        if (!m->text) cli_fail("out of memory: the stories");
    }
    memcpy(m->text + m->size, text, n);
    m->size += n;
    m->text[m->size] = 0;
}

/* The end of the choice that begins after `at`: its '|' or ']', nested ones skipped. */
static inline const char *corpus_choice_end(const char *at)
{
    int depth = 0;
    for (; *at; at++) {
        if (*at == '[') depth++;
        else if (*at == ']' && depth-- == 0) break;
        else if (*at == '|' && depth == 0) break;
    }
    return at;
}

/* Does a sentence begin here?  After a line, an opening quote, or the end of another. */
static inline int corpus_at_start(const corpus_maker *m)
{
    const char *end = m->text + m->size;
    if (m->size < 3 || end[-1] == '\n' || end[-1] == '"') return 1;
    return end[-1] == ' ' && strchr(".?!", end[-2] == '"' ? end[-3] : end[-2]) != NULL;
}

/* Appends the sentence text .. end with its choices made and its facts filled in. */
static inline void corpus_expand(corpus_maker *m, const char *text, const char *end)
{
    while (text < end) {
        if (*text == '[') {
            const char *from = text + 1, *to = corpus_choice_end(from);
            size_t n = 1, pick;
            while (*to == '|') { n++; to = corpus_choice_end(to + 1); }
            text = to + 1;
            for (pick = corpus_draw(m, n); pick; pick--) from = corpus_choice_end(from) + 1;
            corpus_expand(m, from, corpus_choice_end(from));
        } else if (*text == '{') {
            char how = text[1] == '@' || text[1] == '^' ? text[1] : 0, first;
            const char *fact = m->fact[(unsigned char)text[how ? 2 : 1] & 127];
            int start = corpus_at_start(m) && !strchr("hsi", text[1]);      /* "Yes!" she said */
            text = strchr(text, '}') + 1;
            if (how == '@') corpus_put(m, start ? (strchr("aeiou", *fact) ? "An " : "A ") : (strchr("aeiou", *fact) ? "an " : "a "),
                                       strchr("aeiou", *fact) ? 3 : 2);
            first = *fact;
            if ((how == '^' || start) && how != '@' && first >= 'a' && first <= 'z') first = (char)(first - 32);
            corpus_put(m, &first, 1);
            corpus_put(m, fact + 1, strlen(fact + 1));
        } else corpus_put(m, text++, 1);
    }
}

static inline void corpus_facts(corpus_maker *m)
{
    static const char letters[] = "NKMJTCGEPQFLSYDOBXWVU";
    int hero_she = (int)corpus_draw(m, 2);
    size_t whole = 3 + corpus_draw(m, 10), part = 1 + corpus_draw(m, whole - 2), i;
    for (i = 0; letters[i]; i++) m->fact[(int)letters[i]] = "";
    m->fact['N'] = hero_she ? CORPUS_PICK(m, corpus_she) : CORPUS_PICK(m, corpus_he);
    m->fact['h'] = hero_she ? "she" : "he";
    m->fact['H'] = hero_she ? "She" : "He";
    m->fact['s'] = hero_she ? "her" : "his";
    m->fact['i'] = hero_she ? "her" : "him";
    do m->fact['M'] = corpus_draw(m, 2) ? CORPUS_PICK(m, corpus_she) : CORPUS_PICK(m, corpus_he); while (m->fact['M'] == m->fact['N']);
    m->fact['K'] = CORPUS_PICK(m, corpus_kinds);
    do m->fact['J'] = CORPUS_PICK(m, corpus_kinds); while (m->fact['J'] == m->fact['K']);
    m->fact['T'] = CORPUS_PICK(m, corpus_things);
    do m->fact['G'] = CORPUS_PICK(m, corpus_things); while (m->fact['G'] == m->fact['T']);
    m->fact['C'] = CORPUS_PICK(m, corpus_colours);
    do m->fact['E'] = CORPUS_PICK(m, corpus_colours); while (m->fact['E'] == m->fact['C']);
    m->fact['P'] = CORPUS_PICK(m, corpus_places);
    do m->fact['Q'] = CORPUS_PICK(m, corpus_places); while (m->fact['Q'] == m->fact['P']);
    m->fact['F'] = CORPUS_PICK(m, corpus_foods);
    do m->fact['L'] = CORPUS_PICK(m, corpus_foods); while (m->fact['L'] == m->fact['F']);
    m->fact['S'] = CORPUS_PICK(m, corpus_secrets);
    m->fact['Y'] = CORPUS_PICK(m, corpus_messages);
    m->fact['D'] = CORPUS_PICK(m, corpus_days);
    m->fact['O'] = CORPUS_PICK(m, corpus_elders);
    m->fact['B'] = CORPUS_PICK(m, corpus_moods);
    m->fact['X'] = CORPUS_PICK(m, corpus_goods);
    m->fact['W'] = corpus_numbers[whole];
    m->fact['V'] = corpus_numbers[part];
    m->fact['U'] = corpus_numbers[whole - part];
}

/* At least `bytes` of whole stories, a function of the seed alone.  free() the result. */
static inline char *corpus_stories(uint64_t seed, size_t bytes, size_t *written)
{
    corpus_maker m;
    memset(&m, 0, sizeof m);
    m.rng.seed = seed;
    while (m.size < bytes) {
        size_t plot = corpus_draw(&m, sizeof corpus_plots / sizeof *corpus_plots), beat, n;
        const char *title = corpus_plots[plot].titles[corpus_draw(&m, 4)], *line;
        corpus_facts(&m);
        corpus_expand(&m, title, title + strlen(title));
        corpus_put(&m, "\n", 1);
        for (beat = 0; corpus_plots[plot].beats[beat][0]; beat++) {
            for (n = 0; n < 6 && corpus_plots[plot].beats[beat][n]; n++) { }
            line = corpus_plots[plot].beats[beat][corpus_draw(&m, n)];
            if (beat) corpus_put(&m, " ", 1);
            corpus_expand(&m, line, line + strlen(line));
        }
        corpus_put(&m, "\n\n", 2);
    }
    *written = m.size;
    return m.text;
}

/* ---- from text to tokens -------------------------------------------------------------------- */

typedef struct corpus_tokens {
    gpts_tokenizer tokenizer;
    uint16_t *train, *val;
    size_t n_train, n_val;
    size_t bytes;                           /* of the text; 0 when tokens were read        */
    char source[CLI_PATH];                  /* where it came from, in words                */
} corpus_tokens;

static inline void corpus_close(corpus_tokens *data)
{
    gpts_tokenizer_free(&data->tokenizer);
    free(data->train);
    free(data->val);
    memset(data, 0, sizeof *data);
}

/* The tokenizer of --tokenizer; `text` is what chars and bpe learn from. */
static inline void corpus_tokenizer(gpts_tokenizer *tokenizer, const char *name, const char *text, size_t bytes)
{
    if (!strcmp(name, "bytes")) CLI_TRY(gpts_tokenizer_bytes(tokenizer, &cli.hooks), tokenizer->error);
    else if (!strcmp(name, "chars")) CLI_TRY(gpts_tokenizer_chars(tokenizer, text, bytes, &cli.hooks), tokenizer->error);
    else if (!strcmp(name, "bpe"))
        CLI_TRY(gpts_tokenizer_train(tokenizer, text, bytes, (int32_t)cli.vocabulary, &cli.hooks), tokenizer->error);
    else if (!strcmp(name, "gpt2")) {
        if (!cli_exists("data/vocab.bpe"))
            cli_fail("GPT-2's encoding needs its list of merges, data/vocab.bpe: `make data` gets it, or name a copy with --tokenizer FILE");
        CLI_TRY(gpts_tokenizer_load(tokenizer, "data/vocab.bpe", &cli.hooks), tokenizer->error);
    } else CLI_TRY(gpts_tokenizer_load(tokenizer, name, &cli.hooks), tokenizer->error);
    if (tokenizer->vocab_size > 65536) cli_fail("the tokenizer %s has %d ids; token files hold at most 65536", name, (int)tokenizer->vocab_size);
}

static inline uint16_t *corpus_encode(gpts_tokenizer *tokenizer, const char *text, size_t bytes, size_t *n)
{
    int32_t *ids;
    uint16_t *small;
    size_t i;
    CLI_TRY(gpts_tokenizer_encode(tokenizer, text, bytes, NULL, n), tokenizer->error);
    ids = CLI_NEW(int32_t, *n);
    small = CLI_NEW(uint16_t, *n);
    CLI_TRY(gpts_tokenizer_encode(tokenizer, text, bytes, ids, n), tokenizer->error);
    for (i = 0; i < *n; i++) small[i] = (uint16_t)ids[i];
    free(ids);
    return small;
}

static inline void corpus_save_part(const char *name, uint16_t *ids, size_t n, int32_t vocabulary)
{
    char path[CLI_PATH];
    gpts_tokens part;
    memset(&part, 0, sizeof part);
    part.ids = ids;
    part.n = n;
    part.vocab_size = vocabulary;
    strcpy(part.tokenizer, "tokenizer.json");
    CLI_TRY(gpts_tokens_save(&part, cli_path(path, "%s", name)), part.error);
}

/* --data (or the stories) -> OUT/train.bin, val.bin and tokenizer.json, and into memory. */
static inline void corpus_prepare(corpus_tokens *data)
{
    enum { STORIES = 400000 };
    char *text = NULL, *read = NULL, error[GPTS_ERROR_BYTES] = "", path[CLI_PATH];
    size_t bytes = 0, cut;
    memset(data, 0, sizeof *data);
    if (cli.data) {
        CLI_TRY(gpts_read_file(cli.data, &read, &bytes, &cli.hooks, error), error);
        text = read;
        if (!bytes) cli_fail("%s is empty", cli.data);
        snprintf(data->source, sizeof data->source, "%s", cli.data);
    } else {
        text = corpus_stories((uint64_t)cli.seed, STORIES, &bytes);
        cli_write(cli_path(path, "stories.txt"), text, bytes);
        snprintf(data->source, sizeof data->source, "stories made by corpus.h, seed %lld", (long long)cli.seed);
    }
    data->bytes = bytes;
    cut = (size_t)((1 - cli.validation) * (double)bytes);
    while (cut < bytes && ((unsigned char)text[cut] & 0xC0) == 0x80) cut++;      /* not inside a character */
    corpus_tokenizer(&data->tokenizer, cli.tokenizer ? cli.tokenizer : "bpe", text, cli.tokenizer && !strcmp(cli.tokenizer, "chars") ? bytes : cut);
    data->train = corpus_encode(&data->tokenizer, text, cut, &data->n_train);
    data->val = corpus_encode(&data->tokenizer, text + cut, bytes - cut, &data->n_val);
    corpus_save_part("train.bin", data->train, data->n_train, data->tokenizer.vocab_size);
    corpus_save_part("val.bin", data->val, data->n_val, data->tokenizer.vocab_size);
    CLI_TRY(gpts_tokenizer_save(&data->tokenizer, cli_path(path, "tokenizer.json")), data->tokenizer.error);
    if (read) gpts_release(&cli.hooks, read);
    else free(text);
}

static inline void corpus_load_part(const char *name, uint16_t **ids, size_t *n, int32_t vocabulary)
{
    char path[CLI_PATH];
    gpts_tokens part;
    memset(&part, 0, sizeof part);
    CLI_TRY(gpts_tokens_load(&part, cli_path(path, "%s", name), &cli.hooks), part.error);
    if (part.vocab_size != vocabulary)
        cli_fail("%s is for a vocabulary of %d, %s/tokenizer.json has %d", path, (int)part.vocab_size, cli.out, (int)vocabulary);
    *n = part.n;
    *ids = CLI_NEW(uint16_t, part.n);
    memcpy(*ids, part.ids, part.n * sizeof **ids);
    gpts_tokens_free(&part);
}

/* What to train on: --data and --tokenizer when given, else what OUT holds, else the stories. */
static inline void corpus_open(corpus_tokens *data)
{
    char path[CLI_PATH];
    if (cli.data || cli.tokenizer || !cli_exists(cli_path(path, "train.bin"))) { corpus_prepare(data); return; }
    memset(data, 0, sizeof *data);
    CLI_TRY(gpts_tokenizer_load(&data->tokenizer, cli_path(path, "tokenizer.json"), &cli.hooks), data->tokenizer.error);
    corpus_load_part("train.bin", &data->train, &data->n_train, data->tokenizer.vocab_size);
    corpus_load_part("val.bin", &data->val, &data->n_val, data->tokenizer.vocab_size);
    snprintf(data->source, sizeof data->source, "%s/train.bin and val.bin", cli.out);
}

static inline void corpus_need(const corpus_tokens *data, int64_t context)
{
    size_t need = (size_t)context + 1, least = data->n_train < data->n_val ? data->n_train : data->n_val;
    if (least < need)
        cli_fail("the text is too short: its %s part has %llu tokens, and one window of --context %lld needs %llu",
                 data->n_train < need ? "training" : "validation", (unsigned long long)least, (long long)context, (unsigned long long)need);
}

/* A model that was loaded must have been trained with this data's tokenizer. */
static inline void corpus_match(const corpus_tokens *data, const gpts_model *model, const char *path)
{
    if (model->config.vocab_size != data->tokenizer.vocab_size)
        cli_fail("%s has a vocabulary of %lld, the data (%s) one of %d: they do not belong together", path,
                 (long long)model->config.vocab_size, data->source, (int)data->tokenizer.vocab_size);
}

/* `count` windows of T tokens at even distances, always the same ones: for evaluation and
   recording.  tokens, targets [count,T]. */
static inline void corpus_windows(const uint16_t *ids, size_t n, size_t T, size_t count, int32_t *tokens, int32_t *targets)
{
    size_t w, t, start;
    for (w = 0; w < count; w++) {
        start = count > 1 ? (size_t)((double)(n - T - 1) * (double)w / (double)(count - 1)) : 0;
        for (t = 0; t < T; t++) {
            tokens[w * T + t] = ids[start + t];
            targets[w * T + t] = ids[start + t + 1];
        }
    }
}

/* One window of tokens drawn from the text at random, said again and again: nothing predicts them
   but looking for what followed before. */
static inline void corpus_scramble(int32_t *tokens, int32_t *targets, size_t T, const corpus_tokens *data, uint64_t seed, uint64_t row)
{
    gpts_rng rng;
    size_t t, period;
    rng.seed = seed; rng.counter = row << 20;
    period = (size_t)(2 * pow((double)T / 6, gpts_rng_uniform(&rng)));          /* 2 .. T/3, short ones as often as long ones */
    for (t = 0; t <= T; t++) {
        int32_t id = t < period ? (int32_t)data->train[gpts_rng_below(&rng, data->n_train)] : tokens[t - period];
        if (t < T) tokens[t] = id;
        if (t) targets[t - 1] = id;
    }
}

/* Without norms nothing brings the stream to size: start with embeddings of deviation 0.25 and maps that
   keep it.  A head that looks by place alone needs something of place, or something that all tokens share,
   to turn on: positions start as waves (Vaswani et al. 2017), and all tokens with a common part.           */
static inline void corpus_start_larger(gpts_model *m)
{
    size_t k, i, C = (size_t)m->config.n_embd;
    for (k = 0; k < m->n_tensors; k++) {
        const gpts_tensor *t = &m->tensors[k];
        double times = t->kind == GPTS_P_WTE ? 0.25 / 0.02 : 1 / (0.02 * sqrt((double)C));
        for (i = 0; i < t->size; i++) {
            size_t c = i % C;
            double wave = pow(10000, -(double)(c / 2 * 2) / (double)C) * (double)(i / C);
            if (t->kind == GPTS_P_WPE) t->data[i] = (gpts_real)(0.25 * (c % 2 ? cos(wave) : sin(wave)));
            else t->data[i] *= (gpts_real)times;
            if (t->kind == GPTS_P_WTE && m->config.position == GPTS_POSITION_ROPE) t->data[i] += (gpts_real)(c % 3 ? 0.25 : -0.25);
        }
    }
}

/* Mean loss over `count` fixed windows of the validation part (0: as many as fit side by side). */
static inline double corpus_loss(gpts_model *model, const corpus_tokens *data, size_t T, size_t count, size_t batch)
{
    int32_t *tokens, *targets;
    double sum = 0, loss;
    size_t w, n;
    if (!count) count = (data->n_val - 1) / T;
    tokens = CLI_NEW(int32_t, count * T);
    targets = CLI_NEW(int32_t, count * T);
    corpus_windows(data->val, data->n_val, T, count, tokens, targets);
    for (w = 0; w < count; w += n) {
        gpts_batch b;
        memset(&b, 0, sizeof b);
        n = count - w < batch ? count - w : batch;
        b.tokens = tokens + w * T;
        b.targets = targets + w * T;
        b.B = n;
        b.T = T;
        CLI_TRY(gpts_model_forward(model, &b, NULL, &loss), model->error);
        sum += loss * (double)n;
    }
    free(tokens);
    free(targets);
    return sum / (double)count;
}

#endif
