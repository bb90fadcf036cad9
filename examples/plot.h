/* plot.h - the report: one HTML page, OUT/report.html, pictures as inline SVG

   No script, no font, no address of another server; readable on a phone and in the dark.
   Each program writes its own section and then puts the page together from the sections
   that exist, so the report grows with every step and a repeated step replaces its part:

       plot_begin("base", "A small GPT learns to read");
       plot_say("%d updates of %d tokens.", updates, tokens);
       plot_lines("Loss", "update", "nats per token", series, 2);
       plot_table("arm|loss"); plot_row("base|%.3f", loss); plot_table_end();
       plot_end();                                                                        */
#ifndef EXAMPLES_PLOT_H
#define EXAMPLES_PLOT_H
#include "cli.h"

static const char *const plot_sections[] = {                /* in the order of the page */
    "data", "base", "approximators", "hybrid", "heads", "recall", "circuits", "speed", "text" };

static struct { char *text; size_t size, room; const char *section; } plot;

/* ---- text --------------------------------------------------------------------------- */

static inline void plot_put(const char *text, size_t n)
{
    if (plot.size + n + 1 > plot.room) {
        size_t room = 2 * (plot.size + n + 4096);
        char *bigger = (char *)realloc(plot.text, room);
        if (!bigger) cli_fail("out of memory: the report");
        plot.text = bigger;
        plot.room = room;
    }
    memcpy(plot.text + plot.size, text, n);
    plot.size += n;
    plot.text[plot.size] = 0;
}
static inline void plot_raw(const char *format, ...) CLI_PRINTF(1);
static inline void plot_raw(const char *format, ...)                /* HTML as it is */
{
    char text[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    plot_put(text, strlen(text));
}
static inline void plot_escaped(const char *text, size_t n)         /* text, for HTML */
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (text[i] == '<') plot_put("&lt;", 4);
        else if (text[i] == '>') plot_put("&gt;", 4);
        else if (text[i] == '&') plot_put("&amp;", 5);
        else if (text[i] == '"') plot_put("&quot;", 6);
        else plot_put(text + i, 1);
    }
}
static inline void plot_say(const char *format, ...) CLI_PRINTF(1);
static inline void plot_say(const char *format, ...)                /* a paragraph */
{
    char text[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    plot_raw("<p>");
    plot_escaped(text, strlen(text));
    plot_raw("</p>\n");
}
static inline void plot_quote(const char *text, size_t n)           /* text with its line ends */
{
    plot_raw("<blockquote>");
    plot_escaped(text, n);
    plot_raw("</blockquote>\n");
}

/* ---- tables: cells with | between; the first column is text, the others are numbers ---- */

static inline void plot_cells(const char *cells, const char *tag)
{
    const char *end;
    plot_raw("<tr>");
    for (;; cells = end + 1) {
        end = cells + strcspn(cells, "|");
        plot_raw("<%s>", tag);
        plot_escaped(cells, (size_t)(end - cells));
        plot_raw("</%s>", tag);
        if (!*end) break;
    }
    plot_raw("</tr>\n");
}
static inline void plot_table(const char *header)
{
    plot_raw("<div class=\"scroll\"><table>\n");
    plot_cells(header, "th");
}
static inline void plot_row(const char *format, ...) CLI_PRINTF(1);
static inline void plot_row(const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    plot_cells(text, "td");
}
static inline void plot_table_end(void) { plot_raw("</table></div>\n"); }

/* ---- pictures ------------------------------------------------------------------------------ */

enum { PLOT_W = 420, PLOT_H = 270, PLOT_LEFT = 46, PLOT_RIGHT = 12, PLOT_TOP = 12, PLOT_BOTTOM = 40, PLOT_COLOURS = 6 };

static inline void plot_row_begin(void) { plot_raw("<div class=\"row\">\n"); }    /* pictures side by side */
static inline void plot_row_end(void) { plot_raw("</div>\n"); }

static inline void plot_figure(const char *title, int width, int height)
{
    plot_raw("<figure><figcaption>");
    plot_escaped(title, strlen(title));
    plot_raw("</figcaption>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width, height);
    plot_escaped(title, strlen(title));
    plot_raw("\">\n");
}

/* A round step that cuts `span` into 3 to 8 parts. */
static inline double plot_step(double span)
{
    double unit = pow(10, floor(log10(span > 0 ? span : 1))), n = span / unit;
    return n < 1.6 ? unit / 4 : n < 3.2 ? unit / 2 : n < 8 ? unit : 2 * unit;
}
static inline void plot_number(char text[32], double x, double step)
{
    int digits = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    if (step * pow(10, digits) < 2.6 && step * pow(10, digits) > 2.4) digits++;     /* 0.25 needs two */
    if (fabs(x) < step * 1e-6) x = 0;
    snprintf(text, 32, "%.*f", digits > 6 ? 6 : digits, x);
}

typedef struct plot_series { const char *name; const double *x, *y; size_t n; int dots; } plot_series;

/* Curves over one x axis; log_x: powers of two apart. */
static inline void plot_curves(const char *title, const char *x_name, const char *y_name, const plot_series *series, size_t n, int log_x)
{
    double x0 = HUGE_VAL, x1 = -HUGE_VAL, y0 = HUGE_VAL, y1 = -HUGE_VAL, step, t, kx, ky;
    char text[32];
    size_t s, i;
    for (s = 0; s < n; s++)
        for (i = 0; i < series[s].n; i++) {
            double x = log_x ? log2(series[s].x[i]) : series[s].x[i], y = series[s].y[i];
            if (!isfinite(y)) continue;
            if (x < x0) x0 = x;
            if (x > x1) x1 = x;
            if (y < y0) y0 = y;
            if (y > y1) y1 = y;
        }
    if (!(x1 >= x0)) return;
    if (x1 == x0) x1 = x0 + 1;
    if (y1 == y0) { y0 -= 0.5; y1 += 0.5; }
    step = plot_step(y1 - y0);
    y0 = floor(y0 / step) * step;
    y1 = ceil(y1 / step) * step;
    kx = (PLOT_W - PLOT_LEFT - PLOT_RIGHT) / (x1 - x0);
    ky = (PLOT_H - PLOT_TOP - PLOT_BOTTOM) / (y1 - y0);
    plot_figure(title, PLOT_W, PLOT_H);
    for (t = y0; t <= y1 + step * 1e-6; t += step) {
        double y = PLOT_H - PLOT_BOTTOM - (t - y0) * ky;
        plot_number(text, t, step);
        plot_raw("<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", (int)PLOT_LEFT, y,
                 PLOT_W - PLOT_RIGHT, PLOT_LEFT - 6, y + 4, text);
    }
    step = log_x ? 1 : plot_step(x1 - x0);
    for (t = ceil(x0 / step - 1e-9) * step; t <= x1 + step * 1e-6; t += step) {
        plot_number(text, log_x ? exp2(t) : t, log_x ? 1 : step);
        plot_raw("<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", PLOT_LEFT + (t - x0) * kx, PLOT_H - PLOT_BOTTOM + 15, text);
    }
    plot_raw("<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (PLOT_W + PLOT_LEFT - PLOT_RIGHT) / 2, PLOT_H - 6);
    plot_escaped(x_name, strlen(x_name));
    plot_raw("</text>\n");
    for (s = 0; s < n; s++) {
        int pen = 0;
        plot_raw("<path class=\"line k%d\" d=\"", (int)(s % PLOT_COLOURS));
        for (i = 0; i < series[s].n; i++) {
            double x = log_x ? log2(series[s].x[i]) : series[s].x[i], y = series[s].y[i];
            if (!isfinite(y)) { pen = 0; continue; }
            plot_raw("%c%.1f %.1f", pen ? 'L' : 'M', PLOT_LEFT + (x - x0) * kx, PLOT_H - PLOT_BOTTOM - (y - y0) * ky);
            pen = 1;
        }
        plot_raw("\"/>\n");
        for (i = 0; series[s].dots && i < series[s].n; i++)
            if (isfinite(series[s].y[i]))
                plot_raw("<circle class=\"dot k%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", (int)(s % PLOT_COLOURS),
                         PLOT_LEFT + ((log_x ? log2(series[s].x[i]) : series[s].x[i]) - x0) * kx,
                         PLOT_H - PLOT_BOTTOM - (series[s].y[i] - y0) * ky);
    }
    plot_raw("</svg>\n<p class=\"key\">");
    plot_escaped(y_name, strlen(y_name));
    if (n > 1 || series[0].name[0]) plot_raw(":");
    for (s = 0; s < n; s++) {
        plot_raw(" <span class=\"name\"><span class=\"chip k%d\"></span>", (int)(s % PLOT_COLOURS));
        plot_escaped(series[s].name, strlen(series[s].name));
        plot_raw("</span>");
    }
    plot_raw("</p></figure>\n");
}
static inline void plot_lines(const char *title, const char *x_name, const char *y_name, const plot_series *series, size_t n)
{
    plot_curves(title, x_name, y_name, series, n, 0);
}

/* Horizontal bars from `base`; spread (or NULL) as a whisker; colour[] (or NULL) picks a colour. */
static inline void plot_bars(const char *title, const char *unit, const char *const *names, const double *values,
                             const double *spread, const int *colour, size_t n, double base)
{
    enum { ROW = 24, LEFT = 132, RIGHT = 56 };
    double top = base, low = base, scale, zero;
    size_t i;
    for (i = 0; i < n; i++) {
        if (values[i] > top) top = values[i];
        if (values[i] < low) low = values[i];
    }
    scale = (PLOT_W - LEFT - RIGHT) / (top > low ? top - low : 1);
    zero = LEFT + (base - low) * scale;
    plot_figure(title, PLOT_W, (int)n * ROW + 8);
    for (i = 0; i < n; i++) {
        double x = LEFT + (values[i] - low) * scale, y = 4 + (double)i * ROW, from = x < zero ? x : zero, to = x < zero ? zero : x;
        plot_raw("<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">", LEFT - 6, y + 15);
        plot_escaped(names[i], strlen(names[i]));
        plot_raw("</text><rect class=\"bar k%d\" x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n",
                 colour ? colour[i] : 0, from, y + 3, to - from > 1 ? to - from : 1, ROW - 7);
        if (spread && spread[i] > 0)
            plot_raw("<path class=\"whisker\" d=\"M%.1f %.0fH%.1f\"/>\n", x - spread[i] * scale, y + 11.5, x + spread[i] * scale);
        plot_raw("<text x=\"%.1f\" y=\"%.0f\">%.*g%s</text>\n", to + 6 + (spread ? spread[i] * scale : 0), y + 15,
                 fabs(values[i]) < 1 ? 2 : 4, values[i], unit);
    }
    plot_raw("</svg></figure>\n");
}

/* A heat map [rows,columns]: 0 or `low` is blank, `high` full; marked cells get a frame. */
static inline void plot_heat(const char *title, const char *row_name, const char *column_name, const double *values, const int *marked,
                             size_t rows, size_t columns, double low, double high)
{
    enum { LEFT = 22, BOTTOM = 22 };
    double cell = (double)(PLOT_W - LEFT - 2) / (double)columns, height;
    size_t r, c;
    if (cell > 34) cell = 34;
    height = cell * (double)rows;
    plot_figure(title, PLOT_W, (int)ceil(height) + BOTTOM);
    plot_raw("<rect class=\"frame\" x=\"%d\" y=\"0.5\" width=\"%.1f\" height=\"%.1f\"/>\n", (int)LEFT, cell * (double)columns, height);
    for (r = 0; r < rows; r++)
        for (c = 0; c < columns; c++) {
            double v = high > low ? (values[r * columns + c] - low) / (high - low) : 0;
            v = v < 0 || !isfinite(v) ? 0 : v > 1 ? 1 : v;
            if (v >= 0.004 || (marked && marked[r * columns + c]))
                plot_raw("<rect class=\"cell%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill-opacity=\"%.3f\"/>\n",
                         marked && marked[r * columns + c] ? " marked" : "", LEFT + (double)c * cell + (columns < 33),
                         (double)r * cell + 0.5 + (columns < 33), cell - 2 * (columns < 33), cell - 2 * (columns < 33), v);
        }
    plot_raw("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", LEFT + cell * (double)columns / 2, height + 15);
    plot_escaped(column_name, strlen(column_name));
    plot_raw("</text><text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">", height / 2);
    plot_escaped(row_name, strlen(row_name));
    plot_raw("</text></svg></figure>\n");
}

/* ---- the page ---------------------------------------------------------------------------------- */

static inline void plot_begin(const char *section, const char *title)
{
    plot.size = 0;
    plot.section = section;
    plot_raw("<section id=\"%s\"><h2>", section);
    plot_escaped(title, strlen(title));
    plot_raw("</h2>\n");
}

static const char plot_head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>gptstatic: report</title>\n<style>\n"
    ":root{color-scheme:light dark;--paper:#fdfcf9;--ink:#22262b;--soft:#666d76;--rule:#e3dfd6;"
    "--k0:#2463c4;--k1:#cf5a1f;--k2:#158063;--k3:#a03a8c;--k4:#8a6a00;--k5:#5d6672}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e4de;--soft:#9aa1aa;--rule:#2d333b;"
    "--k0:#7aa9ff;--k1:#ff9d66;--k2:#4fcba6;--k3:#e08bd0;--k4:#d9b84a;--k5:#9aa4b2}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}\n"
    "main{max-width:940px;margin:0 auto;padding:20px 16px 60px}h1{font-size:1.6rem;line-height:1.2;margin:.4em 0}\n"
    "h2{font-size:1.2rem;margin:2.2em 0 .4em;padding-top:.7em;border-top:1px solid var(--rule)}p{margin:.5em 0;max-width:44em}\n"
    ".row{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:8px 28px;align-items:start}\n"
    "figure{margin:14px 0;max-width:520px;min-width:0}figcaption{font-weight:600;font-size:.95rem;margin-bottom:4px}\n"
    "svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}\n"
    ".grid{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:2;stroke-linejoin:round}.frame{fill:none;stroke:var(--rule)}\n"
    ".whisker{stroke:var(--ink);stroke-width:1.5}.cell{fill:var(--k0)}.marked{stroke:var(--k1);stroke-width:2;stroke-opacity:1}\n"
    ".line.k0{stroke:var(--k0)}.line.k1{stroke:var(--k1)}.line.k2{stroke:var(--k2)}.line.k3{stroke:var(--k3)}.line.k4{stroke:var(--k4)}.line.k5{stroke:var(--k5)}\n"
    ".bar.k0,.dot.k0{fill:var(--k0)}.bar.k1,.dot.k1{fill:var(--k1)}.bar.k2,.dot.k2{fill:var(--k2)}.bar.k3,.dot.k3{fill:var(--k3)}.bar.k4,.dot.k4{fill:var(--k4)}.bar.k5,.dot.k5{fill:var(--k5)}\n"
    ".name{white-space:nowrap}.chip{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .25em 0 .7em}\n"
    ".chip.k0{background:var(--k0)}.chip.k1{background:var(--k1)}.chip.k2{background:var(--k2)}.chip.k3{background:var(--k3)}.chip.k4{background:var(--k4)}.chip.k5{background:var(--k5)}\n"
    ".key{font-size:.85rem;color:var(--soft);margin:2px 0}.scroll{overflow-x:auto;margin:10px 0}\n"
    "table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}th,td{padding:4px 14px 4px 0;text-align:right;"
    "border-bottom:1px solid var(--rule);white-space:nowrap}th{color:var(--soft);font-weight:600}th:first-child,td:first-child{text-align:left}\n"
    "blockquote{margin:10px 0;padding:10px 14px;border-left:3px solid var(--k0);white-space:pre-wrap;overflow-wrap:anywhere;font-family:Georgia,serif}\n"
    "footer{margin-top:3em;color:var(--soft);font-size:.85rem}\n</style></head>\n<body><main>\n"
    "<h1>A GPT, and what happens when its attention stands still</h1>\n";
static const char plot_foot[] =
    "<footer>Made by the example programs of gptstatic.h; each section names its program's settings. "
    "Loss is the mean negative log-likelihood of a token, in nats; lower is better.</footer>\n</main></body></html>\n";

/* Writes the section and puts the page together again. */
static inline void plot_end(void)
{
    char path[CLI_PATH], *section = NULL, error[GPTS_ERROR_BYTES];
    size_t i, bytes;
    plot_raw("</section>\n");
    cli_path(path, "report-%s.part.html", plot.section);
    cli_write(path, plot.text, plot.size);
    plot.size = 0;
    plot_put(plot_head, sizeof plot_head - 1);
    for (i = 0; i < sizeof plot_sections / sizeof *plot_sections; i++) {
        cli_path(path, "report-%s.part.html", plot_sections[i]);
        if (!cli_exists(path)) continue;
        CLI_TRY(gpts_read_file(path, &section, &bytes, &cli.hooks, error), error);
        plot_put(section, bytes);
        gpts_release(&cli.hooks, section);
    }
    plot_put(plot_foot, sizeof plot_foot - 1);
    cli_write(cli_path(path, "report.html"), plot.text, plot.size);
    free(plot.text);
    memset(&plot, 0, sizeof plot);
}

#endif
